/* Preloaded into a process: SIGKILL at its k-th change of a file, as a machine may lose power there.

   Counted are writes to regular files, fsync, rename, truncation and removal, those of SQLite among them. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

static long steps, kill_at;
static int torn;

/* Die at the k-th step from now on, in the middle of it if it is a write and `tear` is not 0; 0: never. */
void arm(long k, int tear) { steps = 0; kill_at = k; torn = tear; }

long steps_so_far(void) { return steps; }

static int due(void) { return ++steps == kill_at; }

static void die(void) { kill(getpid(), SIGKILL); }

static int is_file(int fd) { struct stat seen; return fstat(fd, &seen) == 0 && S_ISREG(seen.st_mode); }

#define REAL(name, type, ...) \
    static type (*real)(__VA_ARGS__); \
    if (!real) real = dlsym(RTLD_NEXT, name)

ssize_t write(int fd, const void *data, size_t n) {
    REAL("write", ssize_t, int, const void *, size_t);
    if (is_file(fd) && due()) { if (torn) real(fd, data, n / 2); die(); }
    return real(fd, data, n);
}

ssize_t pwrite64(int fd, const void *data, size_t n, off_t at) {
    REAL("pwrite64", ssize_t, int, const void *, size_t, off_t);
    if (due()) { if (torn) real(fd, data, n / 2, at); die(); }
    return real(fd, data, n, at);
}

ssize_t pwrite(int fd, const void *data, size_t n, off_t at) { return pwrite64(fd, data, n, at); }

int fsync(int fd) { REAL("fsync", int, int); if (due()) die(); return real(fd); }

int fdatasync(int fd) { REAL("fdatasync", int, int); if (due()) die(); return real(fd); }

int ftruncate64(int fd, off_t n) { REAL("ftruncate64", int, int, off_t); if (due()) die(); return real(fd, n); }

int ftruncate(int fd, off_t n) { return ftruncate64(fd, n); }

int rename(const char *from, const char *to) {
    REAL("rename", int, const char *, const char *); if (due()) die(); return real(from, to);
}

int unlink(const char *path) { REAL("unlink", int, const char *); if (due()) die(); return real(path); }
