/*
 * The first process of a sandbox. It starts the server as its child, reaps
 * whatever is orphaned to it, and ends as the server ends; the kernel then
 * ends all that is left.
 *
 * It exists because the first process of a namespace is special: the kernel
 * gives it no default action for signals, and gives it every orphan to reap.
 * Servers expect neither. It forwards no signals, since whoever stops a
 * sandbox signals every process of it; it ignores those, since under gVisor
 * the default action would end it, and with it a server that is tidying up.
 *
 * The server's environment comes over its standard input, ahead of what the
 * server will read there: eight hexadecimal digits with the length of what
 * follows, then NAME=VALUE entries, each ended by a zero byte. So the secrets
 * in it are in no file, no database and no other process's view.
 *
 * Build: cc -Os -static -s -Wall -Wextra -o sandbox-init init.c
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { FAILED = 125, NOT_RUNNABLE = 126, NOT_FOUND = 127, LONGEST = 1 << 20 };

extern char **environ;

/* Reads exactly n bytes: one more would be the server's. */
static int read_all(char *to, size_t n)
{
	while (n > 0) {
		ssize_t got = read(STDIN_FILENO, to, n);
		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0)
			return -1;
		to += got;
		n -= (size_t)got;
	}
	return 0;
}

static int read_environment(void)
{
	char digits[9] = {0};
	if (read_all(digits, 8) < 0)
		return -1;
	char *end;
	unsigned long length = strtoul(digits, &end, 16);
	if (*end != 0 || length > LONGEST)
		return -1;
	char *block = calloc(1, length + 1);
	char **list = calloc(length + 1, sizeof(char *));
	if (block == NULL || list == NULL || read_all(block, length) < 0)
		return -1;
	size_t count = 0;
	for (char *entry = block; entry < block + length; entry += strlen(entry) + 1)
		list[count++] = entry;
	environ = list;
	return 0;
}

static void serve(char **argv)
{
	if (argv[0] == NULL || read_environment() < 0) {
		dprintf(STDERR_FILENO, "sandbox: no program or no environment to run it with\n");
		_exit(FAILED);
	}
	execvp(argv[0], argv);
	int cause = errno;
	dprintf(STDERR_FILENO, "%s: %s\n", argv[0], strerror(cause));
	_exit(cause == ENOENT ? NOT_FOUND : NOT_RUNNABLE);
}

int main(int argc, char **argv)
{
	pid_t server = fork();
	if (server < 0 || argc < 1)
		return FAILED;
	if (server == 0)
		serve(argv + 1);
	signal(SIGTERM, SIG_IGN);
	signal(SIGINT, SIG_IGN);
	signal(SIGHUP, SIG_IGN);
	/* The streams are the server's: when it closes one, its peer must see it. */
	close(STDIN_FILENO);
	close(STDOUT_FILENO);
	close(STDERR_FILENO);
	for (;;) {
		int status;
		pid_t pid = wait(&status);
		if (pid < 0 && errno != EINTR)
			return FAILED;
		if (pid != server)
			continue;
		return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
	}
}
