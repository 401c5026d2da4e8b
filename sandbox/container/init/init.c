/*
 * The first process of a sandbox. It starts the server as its child, reaps
 * whatever is orphaned to it, and ends as the server ends; the kernel then
 * ends all that is left.
 *
 * It exists because the first process of a namespace is special: the kernel
 * gives it no default action for signals, and gives it every orphan to reap.
 * Servers expect neither. It forwards no signals, since whoever stops a
 * sandbox signals every process of it.
 *
 * Build: cc -Os -static -s -Wall -Wextra -o sandbox-init init.c
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	if (argc < 2)
		return 125;
	pid_t server = fork();
	if (server < 0)
		return 125;
	if (server == 0) {
		execvp(argv[1], argv + 1);
		int cause = errno;
		dprintf(STDERR_FILENO, "%s: %s\n", argv[1], strerror(cause));
		_exit(cause == ENOENT ? 127 : 126);
	}
	/* The streams are the server's: when it closes one, its peer must see it. */
	close(STDIN_FILENO);
	close(STDOUT_FILENO);
	close(STDERR_FILENO);
	for (;;) {
		int status;
		pid_t pid = wait(&status);
		if (pid < 0 && errno != EINTR)
			return 125;
		if (pid != server)
			continue;
		return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
	}
}
