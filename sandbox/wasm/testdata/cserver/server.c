// A stdio MCP server in C, for wasm32-wasi: echo, and a look at what the host
// gives a guest that is not Go. It reads only what it needs of a message.
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

// member copies the raw JSON value that follows "name": in line.
static int member(const char *line, const char *name, char *out, size_t size) {
  char key[64];
  snprintf(key, sizeof key, "\"%s\":", name);
  const char *p = strstr(line, key);
  if (!p) return 0;
  p += strlen(key);
  size_t n = 0;
  if (*p == '"') {
    do {
      if (n + 2 >= size) return 0;
      if (*p == '\\') out[n++] = *p++;
      out[n++] = *p++;
    } while (*p && *p != '"');
    out[n++] = '"';
  } else {
    while (*p && !strchr(",}]", *p) && n + 1 < size) out[n++] = *p++;
  }
  out[n] = 0;
  return 1;
}

static void answer(const char *id, const char *result) {
  printf("{\"jsonrpc\":\"2.0\",\"id\":%s,\"result\":%s}\n", id, result);
  fflush(stdout);
}

#define TRY(what, ok) \
  if (!(ok)) { snprintf(why, size, "%s: errno %d", what, errno); return why; }

// files does in /data what rename(2), utimensat(2) and open(2) promise.
static const char *files(char *why, size_t size) {
  struct stat st;
  struct timespec times[2] = {{1000, 0}, {2000, 0}};
  TRY("mkdir", mkdir("/data/from", 0777) == 0 && mkdir("/data/to", 0777) == 0)
  TRY("rename onto an empty folder", rename("/data/from", "/data/to") == 0)
  FILE *f = fopen("/data/to/file", "w");
  TRY("create", f && fputs("12345", f) >= 0 && fclose(f) == 0)
  TRY("mkdir", mkdir("/data/from", 0777) == 0)
  TRY("rename onto a full folder", rename("/data/from", "/data/to") < 0 && errno == ENOTEMPTY)
  TRY("symlink", symlink("to/file", "/data/link") == 0)
  TRY("times of a link", utimensat(AT_FDCWD, "/data/link", times, AT_SYMLINK_NOFOLLOW) == 0)
  TRY("lstat", lstat("/data/link", &st) == 0 && st.st_mtim.tv_sec == 2000)
  TRY("stat", stat("/data/link", &st) == 0 && st.st_size == 5 && st.st_mtim.tv_sec != 2000)
  TRY("a folder for writing", open("/data/to", O_RDWR | O_DIRECTORY) < 0 && errno == EISDIR)
  int fd = open("/data/to/file", O_RDWR | O_APPEND);
  TRY("append", fd >= 0 && write(fd, "6", 1) == 1 && pread(fd, why, 6, 0) == 6 && memcmp(why, "123456", 6) == 0)
  TRY("truncate", ftruncate(fd, 2) == 0 && fstat(fd, &st) == 0 && st.st_size == 2 && close(fd) == 0)
  TRY("climbing out", open("/data/../../etc/passwd", O_RDONLY) < 0)
  DIR *d = opendir("/data");
  int n = 0;
  while (d && readdir(d)) n++;
  TRY("readdir", d && closedir(d) == 0 && n == 5)
  return "all is as it should be";
}

// count is how often it was called in this instance, and in this /tmp.
static void count(char *text, size_t size) {
  static int calls;
  int kept = 0;
  FILE *f = fopen("/tmp/calls", "r");
  if (f) {
    if (fscanf(f, "%d", &kept) != 1) kept = -1;
    fclose(f);
  }
  f = fopen("/tmp/calls", "w");
  if (!f || fprintf(f, "%d", ++kept) < 0 || fclose(f) != 0) kept = -1;
  snprintf(text, size, "\"%d %d\"", ++calls, kept);
}

int main(void) {
  static char line[1 << 16], id[64], method[64], text[1 << 15], tool[64], out[1 << 16], why[256];
  while (fgets(line, sizeof line, stdin)) {
    if (!member(line, "method", method, sizeof method)) continue;
    int wants = member(line, "id", id, sizeof id);
    if (!wants) continue;
    if (!strcmp(method, "\"initialize\"")) {
      answer(id, "{\"protocolVersion\":\"2025-06-18\",\"capabilities\":{\"tools\":{}},\"serverInfo\":{\"name\":\"c\",\"version\":\"1\"}}");
    } else if (!strcmp(method, "\"tools/list\"")) {
      answer(id, "{\"tools\":[{\"name\":\"echo\",\"inputSchema\":{\"type\":\"object\"}},{\"name\":\"files\",\"inputSchema\":{\"type\":\"object\"}},{\"name\":\"count\",\"inputSchema\":{\"type\":\"object\"}}]}");
    } else if (!strcmp(method, "\"tools/call\"") && member(line, "name", tool, sizeof tool)) {
      if (!strcmp(tool, "\"files\"")) {
        snprintf(text, sizeof text, "\"%s\"", files(why, sizeof why));
      } else if (!strcmp(tool, "\"count\"")) {
        count(text, sizeof text);
      } else if (!member(line, "text", text, sizeof text)) {
        strcpy(text, "\"\"");
      }
      snprintf(out, sizeof out, "{\"content\":[{\"type\":\"text\",\"text\":%s}]}", text);
      answer(id, out);
    } else {
      answer(id, "{}");
    }
  }
  return 0;
}
