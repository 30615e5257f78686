// A library to preload: the nth call that changes a file in the watched folder fails, or is met by a signal.
//
// Calls are counted from `faults_begin` on, and described in `faults_calls`, one per line.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

enum { LONGEST = 1 << 20, SIGNAL = 1000 };  // faults are errors, or SIGNAL plus the number of a signal

static char watched[PATH_MAX], calls[LONGEST];
static long end, number, moment, fault;
static int full;                  // the disk is, from the fault on
static const char *broken = "";   // the call that keeps failing, from the fault on

void faults_begin(const char *folder, long nth, long what) {
    snprintf(watched, sizeof watched, "%s", folder);
    number = end = full = 0;
    broken = "";
    *calls = 0;
    moment = nth;
    fault = what;
}

void faults_end(void) { *watched = 0; }

const char *faults_calls(void) { return calls; }

static void path_of(int file, char *path) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t size = readlink(link, path, PATH_MAX - 1);
    path[size < 0 ? 0 : size] = 0;
}

static int is_watched(const char *path) { return *watched && !strncmp(path, watched, strlen(watched)); }

// Whether this call is to fail. Once the disk is full, all calls that need space fail; after EIO, all of the same name.
static int fails(const char *call, const char *path, int needs_space) {
    int before = errno;
    number++;
    if (end < LONGEST - PATH_MAX - 64) end += sprintf(calls + end, "%s %s\n", call, path);
    if (number == moment && fault > SIGNAL) raise((int)fault - SIGNAL);
    errno = before;
    int now = (number == moment && fault && fault < SIGNAL) || (full && needs_space) || !strcmp(call, broken);
    if (!now) return 0;
    if (fault == ENOSPC) full = 1;
    if (fault == EIO) broken = call;
    errno = (int)fault;
    return 1;
}

static int fails_at(const char *call, int folder, const char *name, int needs_space) {
    char path[2 * PATH_MAX + 2] = "";
    if (!*watched) return 0;
    if (*name != '/') {
        if (folder == AT_FDCWD) {
            if (!getcwd(path, PATH_MAX)) return 0;
        } else {
            path_of(folder, path);
        }
        strcat(path, "/");
    }
    strncat(path, name, PATH_MAX);
    return is_watched(path) && fails(call, path, needs_space);
}

static int fails_on(const char *call, int file, int needs_space) {
    char path[PATH_MAX];
    if (!*watched || file == 2) return 0;
    path_of(file, path);
    return ((file == 1 && strcmp(path, "/dev/null")) || is_watched(path)) && fails(call, path, needs_space);
}

#define USUAL(name) static __typeof__(&name) usual; if (!usual) usual = (__typeof__(&name))dlsym(RTLD_NEXT, #name)
#define OF_FILE(kind, name, parameters, arguments, file, needs_space) \
    kind name parameters { USUAL(name); return fails_on(#name, file, needs_space) ? -1 : usual arguments; }
#define OF_PATH(kind, name, parameters, arguments, folder, path, needs_space) \
    kind name parameters { USUAL(name); return fails_at(#name, folder, path, needs_space) ? -1 : usual arguments; }
#define HERE AT_FDCWD

OF_FILE(ssize_t, write, (int f, const void *data, size_t size), (f, data, size), f, 1)
OF_FILE(ssize_t, pwrite, (int f, const void *data, size_t size, off_t at), (f, data, size, at), f, 1)
OF_FILE(ssize_t, pwrite64, (int f, const void *data, size_t size, off64_t at), (f, data, size, at), f, 1)
OF_FILE(int, fsync, (int f), (f), f, 0)
OF_FILE(int, fdatasync, (int f), (f), f, 0)
OF_FILE(int, ftruncate, (int f, off_t size), (f, size), f, 0)
OF_FILE(int, ftruncate64, (int f, off64_t size), (f, size), f, 0)
OF_FILE(int, fchmod, (int f, mode_t mode), (f, mode), f, 0)
OF_PATH(int, rename, (const char *from, const char *to), (from, to), HERE, from, 0)
OF_PATH(int, renameat, (int d, const char *from, int e, const char *to), (d, from, e, to), d, from, 0)
OF_PATH(int, renameat2, (int d, const char *from, int e, const char *to, unsigned how), (d, from, e, to, how), d, from, 0)
OF_PATH(int, unlink, (const char *path), (path), HERE, path, 0)
OF_PATH(int, unlinkat, (int d, const char *path, int how), (d, path, how), d, path, 0)
OF_PATH(int, rmdir, (const char *path), (path), HERE, path, 0)
OF_PATH(int, mkdir, (const char *path, mode_t mode), (path, mode), HERE, path, 1)
OF_PATH(int, mkdirat, (int d, const char *path, mode_t mode), (d, path, mode), d, path, 1)
OF_PATH(int, link, (const char *from, const char *to), (from, to), HERE, from, 1)
OF_PATH(int, linkat, (int d, const char *from, int e, const char *to, int how), (d, from, e, to, how), d, from, 1)
OF_PATH(int, chmod, (const char *path, mode_t mode), (path, mode), HERE, path, 0)
OF_PATH(int, chown, (const char *path, uid_t user, gid_t group), (path, user, group), HERE, path, 0)

#define MODE mode_t mode = 0; \
    if (flags & (O_CREAT | O_TMPFILE)) { va_list more; va_start(more, flags); mode = va_arg(more, mode_t); va_end(more); }
#define WRITES ((flags & O_ACCMODE) != O_RDONLY || (flags & O_CREAT))

#define OPEN(name) \
    int name(const char *path, int flags, ...) { \
        MODE USUAL(name); \
        return WRITES && fails_at(#name, HERE, path, flags & O_CREAT) ? -1 : usual(path, flags, mode); \
    }
#define OPEN_AT(name) \
    int name(int folder, const char *path, int flags, ...) { \
        MODE USUAL(name); \
        return WRITES && fails_at(#name, folder, path, flags & O_CREAT) ? -1 : usual(folder, path, flags, mode); \
    }
OPEN(open)
OPEN(open64)
OPEN_AT(openat)
OPEN_AT(openat64)

#define OPEN_STREAM(name) \
    FILE *name(const char *path, const char *mode) { \
        USUAL(name); \
        return strpbrk(mode, "wa+") && fails_at(#name, HERE, path, 1) ? NULL : usual(path, mode); \
    }
OPEN_STREAM(fopen)
OPEN_STREAM(fopen64)
