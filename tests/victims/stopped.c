// Makes system calls with arguments of many kinds, for programs that record what strace reads: all its memory is at fixed
// addresses, and it makes the same calls in each run. Between calls of close(MARK) and close(MARK + 1) are those that count.
// Argument: a directory of its own, to be made.
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { MARK = -12345, PAGE = 4096 };

// Readable pages, then one that is not.
static char *const arena = (char *)0x20000000;
#define PAGES 16
#define END (arena + PAGES * PAGE)
#define BAD ((char *)0x1000)
#define UNMAPPED (END + 64)

#define CALL(...) syscall(__VA_ARGS__)

// A text at an address.
static char *put(char *at, const char *text) { return strcpy(at, text); }

// A text whose NUL is the last byte that can be read.
static char *at_end(const char *text) { return strcpy(END - strlen(text) - 1, text); }

// A text of so many bytes and a NUL.
static char *long_text(char *at, size_t bytes) {
    memset(at, 'p', bytes);
    at[bytes] = 0;
    return at;
}

// The ways in which a path can be given.
static char *path(int kind) {
    switch (kind) {
    case 0: return put(arena, "/etc/passwd");
    case 1: return at_end("/etc/group");
    case 2: return NULL;
    case 3: return BAD;
    case 4: return UNMAPPED;
    case 5: memset(END - 8, 'x', 8); return END - 8;
    case 6: return long_text(arena + PAGE - 100, 300);
    case 7: return long_text(arena + 7, 4094);
    case 8: return long_text(arena + 7, 4095);
    case 9: return long_text(arena + 7, 5000);
    case 10: return put(arena + 2 * PAGE - 5, "/nonexistent/\1\377\n\"quoted\"");
    case 11: return put(arena, "");
    case 12: return long_text(arena + 3, 200);
    case 13: return put(arena, "/");
    case 14: return long_text(arena + 3, 383);
    case 15: return long_text(arena + 3, 384);
    default: return put(arena, "/proc/self/exe");
    }
}
#define PATHS 17

// Where outputs may go.
static char *room(int kind) {
    char *const rooms[] = {arena + 4 * PAGE, arena + 5 * PAGE - 20, NULL, BAD, UNMAPPED, END - 4, END - 8, END - 512};
    memset(arena + 4 * PAGE, 0x11, 2 * PAGE);
    memset(END - 512, 0x22, 512);
    return rooms[kind];
}
#define ROOMS 8

// The same, but nothing has this name, or only something in this process's own directory: what may be changed and removed.
static char *loose(int kind) { return path(kind == 0 ? 4 : kind == 1 ? 12 : kind == 13 ? 14 : kind == 16 ? 15 : kind); }

// A loose path elsewhere than the other one.
static char *second(int kind) {
    static char copy[6000];
    char *of = loose(kind);
    if (!of || of == BAD || of == UNMAPPED || kind == 5) return of;
    strcpy(copy, of);
    return strcpy(arena + (kind & 1 ? 8 : 9) * PAGE + (kind & 1 ? PAGE - 16 : 0), copy);
}

static void paths(void) {
    for (int kind = 0; kind < PATHS; kind++) {
        int fd = CALL(SYS_open, path(kind), O_RDONLY, 0);
        if (fd >= 0) CALL(SYS_close, fd);
        fd = CALL(SYS_openat, AT_FDCWD, path(kind), O_RDONLY | O_CLOEXEC, 0);
        if (fd >= 0) CALL(SYS_close, fd);
        CALL(SYS_access, path(kind), R_OK);
        CALL(SYS_faccessat, -77, path(kind), R_OK);
        CALL(SYS_faccessat2, AT_FDCWD, path(kind), R_OK, AT_EACCESS);
        CALL(SYS_inotify_add_watch, -1, path(kind), 1);
        CALL(SYS_chdir, loose(kind));
        CALL(SYS_unlinkat, -77, loose(kind), 0);
        CALL(SYS_mkdirat, -77, loose(kind), 0700);
        CALL(SYS_mknodat, -77, loose(kind), S_IFIFO, 0);
        CALL(SYS_fchmodat, -77, loose(kind), 0600);
        CALL(SYS_fchownat, -77, loose(kind), 1, 1, 0);
        CALL(SYS_mkdir, loose(kind), 0700);
        CALL(SYS_rmdir, loose(kind));
        fd = CALL(SYS_creat, loose(kind), 0600);
        if (fd >= 0) CALL(SYS_close, fd);
        CALL(SYS_truncate, loose(kind), 10);
        CALL(SYS_chmod, loose(kind), 0600);
        CALL(SYS_chown, loose(kind), -1, -1);
        CALL(SYS_lchown, loose(kind), -1, -1);
        CALL(SYS_chroot, loose(kind));
        CALL(SYS_unlink, loose(kind));
        CALL(SYS_mknod, loose(kind), S_IFIFO | 0600, 0);
        CALL(SYS_unlink, loose(kind));
        for (int other = 0; other < PATHS; other++) {
            char *to = second(other), *from = loose(kind);
            CALL(SYS_renameat, -77, from, -77, to);
            CALL(SYS_renameat2, -77, from, -77, to, 1);
            CALL(SYS_linkat, -77, from, -77, to, AT_SYMLINK_FOLLOW);
            CALL(SYS_symlinkat, from, -77, to);
            CALL(SYS_rename, from, to);
            CALL(SYS_link, from, to);
            CALL(SYS_symlink, from, to);
            CALL(SYS_unlink, to);
        }
        for (int to = 0; to < ROOMS; to++) {
            CALL(SYS_stat, path(kind), room(to));
            CALL(SYS_lstat, path(kind), room(to));
            CALL(SYS_newfstatat, AT_FDCWD, path(kind), room(to), AT_SYMLINK_NOFOLLOW);
            CALL(SYS_statx, AT_FDCWD, path(kind), 0, 0xfff, room(to));
            CALL(SYS_statfs, path(kind), room(to));
            CALL(SYS_readlink, path(kind), room(to), 4);
            CALL(SYS_readlink, path(kind), room(to), 100);
            CALL(SYS_readlinkat, AT_FDCWD, path(kind), room(to), 100);
            CALL(SYS_utimensat, -77, loose(kind), room(to), 0);
        }
    }
}

static void data(void) {
    int fd = CALL(SYS_open, put(arena, "file"), O_RDWR | O_CREAT | O_TRUNC, 0600);
    static const size_t sizes[] = {0, 1, 4, 8, 31, 32, 33, 34, 64, 400, 401, 4095, 4096, 9000, -1};
    for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        for (int to = 0; to < ROOMS; to++) {
            CALL(SYS_write, fd, room(to), sizes[i]);
            CALL(SYS_pwrite64, fd, room(to), sizes[i], 5);
            CALL(SYS_pread64, fd, room(to), sizes[i], 3);
            CALL(SYS_lseek, fd, 0, SEEK_SET);
            CALL(SYS_read, fd, room(to), sizes[i]);
            CALL(SYS_read, -1, room(to), sizes[i]);
            CALL(SYS_write, -1, room(to), sizes[i]);
            if (sizes[i] < 500) CALL(SYS_getrandom, room(to), sizes[i], 0);
            CALL(SYS_getcwd, room(to), sizes[i]);
            CALL(SYS_bind, fd, room(to), sizes[i]);
            CALL(SYS_sched_getaffinity, 0, sizes[i], room(to));
        }
    }
    for (int to = 0; to < ROOMS; to++) {
        CALL(SYS_fstat, fd, room(to));
        CALL(SYS_fstat, -1, room(to));
        CALL(SYS_fstatfs, fd, room(to));
    }
    for (int command = 0; command < 40; command++) CALL(SYS_fcntl, -1, command, room(0));
    for (int command = 1024; command < 1040; command++) CALL(SYS_fcntl, -1, command, room(0));
    CALL(SYS_fcntl, fd, F_GETFL);
    CALL(SYS_fcntl, fd, F_GETFD);
    CALL(SYS_ftruncate, fd, 0);
    CALL(SYS_close, fd);
    CALL(SYS_rename, put(arena, "file"), put(arena + 100, "other"));
    CALL(SYS_link, put(arena, "other"), put(arena + 100, "third"));
    CALL(SYS_symlink, put(arena, "other"), put(arena + 100, "symbolic"));
    CALL(SYS_unlink, put(arena, "other"));
    CALL(SYS_unlink, put(arena, "third"));
    CALL(SYS_unlink, put(arena, "symbolic"));
}

static void times(void) {
    struct timespec *wait = (struct timespec *)arena;
    struct itimerspec *timer = (struct itimerspec *)arena;
    int fd = CALL(SYS_timerfd_create, CLOCK_MONOTONIC, 0);
    for (int to = 0; to < ROOMS; to++) {
        CALL(SYS_clock_gettime, CLOCK_MONOTONIC, room(to));
        CALL(SYS_clock_getres, CLOCK_REALTIME, room(to));
        CALL(SYS_gettimeofday, room(to), NULL);
        CALL(SYS_gettimeofday, NULL, room(to));
        CALL(SYS_gettimeofday, room(to), room(to));
        CALL(SYS_time, to == 3 || to == 4 ? NULL : room(to));
        CALL(SYS_times, room(to));
        CALL(SYS_getitimer, ITIMER_PROF, room(to));
        CALL(SYS_timerfd_gettime, fd, room(to));
        CALL(SYS_timerfd_gettime, -1, room(to));
        *wait = (struct timespec){0, 1000 + to};
        CALL(SYS_nanosleep, wait, room(to));
        CALL(SYS_clock_nanosleep, CLOCK_MONOTONIC, 0, wait, room(to));
        memset(room(to) < arena ? arena : room(0), 0, 64);
        CALL(SYS_nanosleep, to == 2 || to == 3 || to == 4 ? room(to) : BAD, NULL);
        CALL(SYS_clock_nanosleep, CLOCK_MONOTONIC, TIMER_ABSTIME, to > 1 ? room(to) : BAD, NULL);
        *timer = (struct itimerspec){0};
        CALL(SYS_timerfd_settime, fd, 0, timer, room(to));
        CALL(SYS_timerfd_settime, fd, 0, room(to), NULL);
        CALL(SYS_setitimer, ITIMER_PROF, timer, room(to));
        CALL(SYS_setitimer, 77, room(to), room(0));
        for (int op = 0; op < 16; op++) CALL(SYS_futex, BAD, op | FUTEX_PRIVATE_FLAG, 1, room(to), BAD, 0);
        CALL(SYS_futex, arena + 8, FUTEX_WAIT | FUTEX_PRIVATE_FLAG, 1234567, room(to));
        CALL(SYS_futex, arena + 8, FUTEX_WAKE, 1, room(to));
    }
    CALL(SYS_close, fd);
}

static void handle(int number) { (void)number; }

static void processes(void) {
    for (int to = 0; to < ROOMS; to++) {
        CALL(SYS_uname, room(to));
        CALL(SYS_sysinfo, room(to));
        CALL(SYS_getrlimit, 7, room(to));
        CALL(SYS_setrlimit, 77, room(to));
        CALL(SYS_prlimit64, 0, 7, NULL, room(to));
        CALL(SYS_prlimit64, -1, 7, room(to), NULL);
        CALL(SYS_prlimit64, 0, 77, room(to), room(0));
        CALL(SYS_getrusage, 0, room(to));
        CALL(SYS_getrusage, 77, room(to));
        CALL(SYS_getresuid, room(to), arena, arena + 8);
        CALL(SYS_getresgid, arena, room(to), arena + 8);
        CALL(SYS_getcpu, arena, room(to), NULL);
        CALL(SYS_arch_prctl, 0x1003, room(to));
        CALL(SYS_arch_prctl, 0x3001, room(to));
        if (to != 3 && to != 4) {
            int fds = CALL(SYS_pipe, room(to));
            (void)fds;
            CALL(SYS_pipe2, room(to), O_CLOEXEC);
            CALL(SYS_socketpair, AF_UNIX, SOCK_STREAM, 0, room(to));
        }
        CALL(SYS_wait4, -1, room(to), 0, room(0));
        CALL(SYS_waitid, 0, 0, room(to), 4, room(0));
        CALL(SYS_rt_sigprocmask, SIG_BLOCK, room(to), NULL, 8);
        CALL(SYS_rt_sigprocmask, SIG_BLOCK, NULL, room(to), 8);
        CALL(SYS_rt_sigprocmask, SIG_SETMASK, memset(arena, 0, 8), room(to), 8);
        for (int length = 0; length < 20; length += 2) CALL(SYS_rt_sigprocmask, SIG_BLOCK, room(to), room(0), length);
        CALL(SYS_rt_sigprocmask, SIG_SETMASK, memset(arena, 0, 8), NULL, 8);
        CALL(SYS_rt_sigpending, room(to), 8);
        CALL(SYS_rt_sigpending, room(to), 4);
        CALL(SYS_rt_sigaction, SIGUSR2, NULL, room(to), 8);
        CALL(SYS_rt_sigaction, SIGKILL, room(to), NULL, 8);
        CALL(SYS_rt_sigaction, 77, room(to), room(0), 8);
        CALL(SYS_rt_sigaction, SIGUSR1, NULL, room(to), 4);
        CALL(SYS_sigaltstack, NULL, room(to));
        CALL(SYS_sigaltstack, memset(arena, 0x11, 24), room(to));
        CALL(SYS_sigaltstack, to == 1 || to == 0 ? BAD : room(to), NULL);
        CALL(SYS_set_robust_list, room(to), 23);
    }
    for (int i = 0; i < 3; i++) {
        int child = CALL(SYS_clone, SIGCHLD | (i == 1 ? CLONE_PARENT_SETTID : 0), NULL, arena + 64, NULL, NULL);
        if (child == 0) _exit(i);
        siginfo_t *info = (siginfo_t *)(arena + 256);
        if (i == 2) CALL(SYS_waitid, P_PID, child, info, WEXITED, arena + 1024);
        else CALL(SYS_wait4, child, arena + 128, 0, i ? arena + 1024 : NULL);
    }
    for (int to = 3; to < ROOMS; to++) {
        int child = CALL(SYS_fork);
        if (child == 0) _exit(1);
        CALL(SYS_wait4, child, room(to), 0, room(0));
        CALL(SYS_wait4, -1, room(to), 0, room(0));
    }
    CALL(SYS_kill, 0x7fffffff, 0);
    CALL(SYS_tgkill, getpid(), getpid(), 0);
    CALL(SYS_getpid);
    CALL(SYS_gettid);
    CALL(SYS_getuid);
    CALL(SYS_brk, 0);
    CALL(SYS_madvise, arena, PAGE, 4 * 0);
    CALL(SYS_mprotect, arena, PAGE, PROT_READ | PROT_WRITE);
    CALL(SYS_mmap, 0x30000000, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    CALL(SYS_mremap, 0x30000000, PAGE, 2 * PAGE, 0, 0);
    CALL(SYS_munmap, 0x30000000, 2 * PAGE);
    CALL(SYS_sched_yield);
    CALL(SYS_umask, 022);
    CALL(SYS_dup2, 0, 77);
    CALL(SYS_dup3, 0, 78, O_CLOEXEC);
    CALL(SYS_dup, -1);
    CALL(SYS_flock, -1, 2);
    CALL(SYS_fsync, -1);
    CALL(SYS_prctl, 16, arena);
    CALL(SYS_ioctl, 0, 0x5401, arena);
    CALL(SYS_set_tid_address, arena + 8);
}

static void events(void) {
    int fd = CALL(SYS_epoll_create1, 0);
    int *made = (int *)(arena + 2 * PAGE), pair[2];
    if (CALL(SYS_socketpair, AF_UNIX, SOCK_STREAM, 0, made)) exit(3);
    memcpy(pair, made, sizeof pair);
    struct sockaddr_un *name = (struct sockaddr_un *)(arena + 3 * PAGE);
    *name = (struct sockaddr_un){AF_UNIX, "a-name-that-is-rather-long-for-a-socket-in-a-directory"};
    socklen_t name_bytes = offsetof(struct sockaddr_un, sun_path) + strlen(name->sun_path) + 1;
    int named = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0);
    if (bind(named, (struct sockaddr *)name, name_bytes) || listen(named, 64)) exit(4);
    if (unlink(name->sun_path)) exit(5);
    for (int to = 0; to < ROOMS; to++) {
        for (int op = 0; op < 5; op++) CALL(SYS_epoll_ctl, fd, op, pair[0], room(to));
        CALL(SYS_epoll_ctl, fd, 2, pair[0], NULL);
        CALL(SYS_epoll_wait, fd, room(to), 4, 0);
        struct epoll_event *event = (struct epoll_event *)arena;
        *event = (struct epoll_event){EPOLLIN | EPOLLOUT, {.u64 = 0x1122334455667788}};
        CALL(SYS_epoll_ctl, fd, 1, pair[1], event);
        CALL(SYS_epoll_wait, fd, room(to), 4, 0);
        CALL(SYS_epoll_wait, -1, room(to), 4, 0);
        for (unsigned many = 0; many < 40; many += 3) CALL(SYS_poll, room(to), many, 0);
        struct pollfd *polled = (struct pollfd *)(to == 5 ? END - 8 : to == 6 ? END - 16 : arena);
        for (unsigned many = 0; many < 20; many++) {
            if (to != 5 && to != 6)
                for (unsigned i = 0; i < many; i++) polled[i] = (struct pollfd){pair[i & 1], POLLIN | (i & 2 ? POLLOUT : 0), 0};
            else polled[0] = (struct pollfd){pair[0], POLLOUT, 0};
            CALL(SYS_poll, polled, many, 0);
        }
        struct sockaddr_un *address = (struct sockaddr_un *)arena;
        *address = (struct sockaddr_un){AF_UNIX, "/nonexistent/socket"};
        CALL(SYS_connect, pair[0], to < 3 ? (char *)address : room(to), 4 + 20 * to);
        CALL(SYS_connect, pair[0], to < 5 ? (char *)address : room(to), to ? -to : sizeof *address);
        CALL(SYS_bind, -1, address, sizeof *address);
        address->sun_path[0] = 0;
        CALL(SYS_bind, -1, address, 12);
        address->sun_family = to;
        CALL(SYS_bind, -1, address, 60 + to);
        address->sun_family = AF_INET6;
        CALL(SYS_bind, -1, address, 28);
    }
    for (int to = 0; to < ROOMS; to++) {
        // A socket without a name, one with a long one, and lengths that are smaller and larger.
        for (int length = -1; length < 200; length += length < 20 ? 5 : 50) {
            socklen_t *bytes = (socklen_t *)(arena + 64);
            *bytes = length;
            CALL(SYS_getsockname, pair[0], room(to), bytes);
            *bytes = length;
            CALL(SYS_getpeername, pair[0], room(to), bytes);
            *bytes = length;
            CALL(SYS_getsockname, named, room(to), bytes);
            *bytes = length;
            CALL(SYS_accept4, -1, room(to), bytes, 0);
            int client = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0);
            connect(client, (struct sockaddr *)name, name_bytes);
            *bytes = length;
            int accepted = length & 1 ? CALL(SYS_accept, named, room(to), bytes) : CALL(SYS_accept4, named, room(to), bytes, 0);
            close(client);
            if (accepted >= 0) close(accepted);
        }
        CALL(SYS_getsockname, named, arena, room(to));
        CALL(SYS_accept, -1, arena, room(to));
        struct timespec *wait = (struct timespec *)(arena + 512);
        *wait = (struct timespec){0, 1000};
        for (unsigned many = 0; many < 20; many += 5) {
            CALL(SYS_ppoll, room(to), many, wait, NULL, 8);
            memset(arena + 1024, 0, 16);
            CALL(SYS_ppoll, arena, many, many & 1 ? (char *)wait : to > 2 ? room(to) : (char *)wait, to > 1 ? room(to) : arena + 1024, 8);
        }
        CALL(SYS_sendfile, -1, -1, room(to), 10);
        CALL(SYS_signalfd4, -1, room(to), 8, 0);
        CALL(SYS_signalfd4, -77, room(to), 4, 0);
        CALL(SYS_sched_setaffinity, -1, 8, room(to));
        CALL(SYS_sched_setaffinity, -1, 1024, room(to));
        CALL(SYS_clock_settime, 77, room(to));
        CALL(SYS_timer_settime, 77, 0, room(to), room(0));
        CALL(SYS_timer_gettime, 77, room(to));
        CALL(SYS_utimes, loose(4), room(to));
        CALL(SYS_utimes, loose(10), room(to));
        CALL(SYS_utime, loose(10), room(to));
        CALL(SYS_futimesat, -77, loose(10), room(to));
        CALL(SYS_readv, pair[0], room(to), 0);
        CALL(SYS_readv, -1, room(to), 3);
        CALL(SYS_writev, -1, room(to), 3);
        CALL(SYS_sendto, -1, room(to), 3, 0, room(to), 16);
        CALL(SYS_recvfrom, -1, room(to), 3, 0, room(to), room(to));
        CALL(SYS_getsockopt, pair[0], SOL_SOCKET, SO_TYPE, arena, room(to));
        CALL(SYS_setsockopt, pair[0], 77, 77, room(to), 4);
        CALL(SYS_getdents64, -1, room(to), 100);
        CALL(SYS_mincore, arena, PAGE, room(to));
    }
    for (int kind = 0; kind < PATHS; kind++) {
        CALL(SYS_memfd_create, path(kind), -1);
        CALL(SYS_swapoff, loose(kind));
        CALL(SYS_swapon, loose(kind), 0);
        CALL(SYS_umount2, loose(kind), 1 << 20);
        CALL(SYS_pivot_root, loose(kind), loose(10));
    }
    CALL(SYS_socket, AF_INET, SOCK_STREAM, 0);
    CALL(SYS_socket, 77, 1, 0);
    CALL(SYS_listen, -1, 5);
    CALL(SYS_shutdown, -1, 2);
}

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
    if (mmap(arena, PAGES * PAGE, PROT_READ | PROT_WRITE, flags, -1, 0) != arena) return 1;
    signal(SIGUSR1, handle);
    if (mkdir(argv[1], 0700) || chdir(argv[1])) return 1;
    close(MARK);
    paths();
    data();
    times();
    processes();
    events();
    close(MARK + 1);
    if (rmdir(argv[1])) return 1;
    return 0;
}
