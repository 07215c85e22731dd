// What strace shows of calls that end the process, have unknown numbers, or meet signals: `straced WHAT [FLAGS CALL]`.
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static int kills(const char *how) {
    int pid = getpid();
    siginfo_t info = {.si_signo = SIGKILL, .si_code = SI_QUEUE};
    if (!strcmp(how, "kill")) kill(pid, SIGKILL);
    if (!strcmp(how, "tgkill")) syscall(SYS_tgkill, pid, pid, SIGKILL);
    if (!strcmp(how, "tkill")) syscall(SYS_tkill, pid, SIGKILL);
    if (!strcmp(how, "sigqueue")) syscall(SYS_rt_sigqueueinfo, pid, SIGKILL, &info);
    if (!strcmp(how, "tgsigqueue")) syscall(SYS_rt_tgsigqueueinfo, pid, pid, SIGKILL, &info);
    if (!strcmp(how, "group")) { setpgid(0, 0); kill(0, SIGKILL); }
    if (!strcmp(how, "-group")) { setpgid(0, 0); kill(-pid, SIGKILL); }
    if (!strcmp(how, "pidfd")) syscall(SYS_pidfd_send_signal, syscall(SYS_pidfd_open, pid, 0), SIGKILL, NULL, 0);
    if (!strcmp(how, "term")) kill(pid, SIGTERM);
    if (!strcmp(how, "child")) {
        int child = fork();
        if (!child) for (;;) pause();
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
    }
    return 3;
}

static long made(long number) {
    register long r10 asm("r10") = 4;
    register long r8 asm("r8") = 5;
    register long r9 asm("r9") = 6;
    long result;
    asm volatile("syscall" : "=a"(result) : "a"(number), "D"(1), "S"(2), "d"(3), "r"(r10), "r"(r8), "r"(r9)
                 : "rcx", "r11", "memory");
    return result;
}

static int numbers(void) {
    // (A number that the code has.)
    made(1000);
    static const long all[] = {
        511, 512, 548, 1000, 0x7fffffff, -1, -2, 0x80000000, 0xffffffff, 0x100000000 | SYS_getpid,
        134, 174, 180, 211, 423, 1 << 30 | SYS_getpid, 1 << 30 | SYS_read, 1 << 30 | SYS_execve, 1 << 30 | 520, 1 << 30 | 512,
    };
    for (unsigned at = 0; at < sizeof all / sizeof *all; at++) {
        getppid();
        made(all[at]);
        syscall(all[at], 1, 0x20, 3, 4, 5, 6);
    }
    return 0;
}

static volatile int signals;

static void count(int signal) {
    (void)signal;
    signals++;
}

static void make(const char *call, int *pipe) {
    struct timespec brief = {0, 300000};
    struct stat status;
    struct pollfd polled = {pipe[0], POLLIN, 0};
    char byte;
    int word = 0;
    if (!strcmp(call, "getppid")) getppid();
    if (!strcmp(call, "fstat")) fstat(0, &status);
    if (!strcmp(call, "open")) close(open("/etc/hostname", O_RDONLY));
    if (!strcmp(call, "write")) write(pipe[1], "text", 4), read(pipe[0], (char[4]){0}, 4);
    if (!strcmp(call, "read")) read(pipe[0], &byte, 1);
    if (!strcmp(call, "pause")) pause();
    if (!strcmp(call, "nanosleep")) clock_nanosleep(CLOCK_MONOTONIC, 0, &brief, NULL);
    if (!strcmp(call, "poll")) poll(&polled, 1, 1);
    if (!strcmp(call, "futex")) syscall(SYS_futex, &word, FUTEX_WAIT, 0, &brief, NULL, 0);
    if (!strcmp(call, "wait")) waitpid(-1, NULL, 0);
    if (!strcmp(call, "fork")) {
        int child = syscall(SYS_fork);
        if (!child) _exit(0);
        while (waitpid(child, NULL, 0) < 0) {}
    }
}

/// Makes a call again and again, until so many signals have come.
static int storm(int flags, const char *call, int signals_max) {
    int pipes[2];
    if (pipe(pipes)) return 1;
    // (One that does not end, for who waits.)
    int child = strcmp(call, "wait") ? 0 : fork();
    if (!strcmp(call, "wait") && !child) for (;;) pause();
    struct sigaction action = {.sa_handler = count, .sa_flags = flags};
    sigaction(SIGALRM, &action, NULL);
    // (A call that is made again whatever comes ends with its process: by a timer of its own.)
    int ends = !(flags & SA_RESTART) || (strcmp(call, "read") && strcmp(call, "wait"));
    struct itimerval timer = {{0, 1000}, {0, 1000}};
    setitimer(ITIMER_REAL, &timer, NULL);
    while (signals < signals_max && (ends || !signals)) {
        if (ends) make(call, pipes);
        else {
            // (The other side writes, or ends, when enough signals have come.)
            int other = fork();
            if (!other) {
                setitimer(ITIMER_REAL, &(struct itimerval){0}, NULL);
                usleep(100000);
                if (write(pipes[1], "x", 1) != 1) _exit(1);
                if (child) kill(child, SIGKILL);
                _exit(0);
            }
            make(call, pipes);
        }
    }
    setitimer(ITIMER_REAL, &(struct itimerval){0}, NULL);
    if (child && ends) kill(child, SIGKILL);
    return 0;
}

// Waits for children that end while their parents become targets.
static int waits(void) {
    for (int run = 0; run < 30; run++) {
        if (!fork()) {
            if (!fork()) _exit(0);
            wait(NULL);
            _exit(0);
        }
        wait(NULL);
    }
    return 0;
}

int main(int count, char **words) {
    const char *what = count > 1 ? words[1] : "";
    if (!strcmp(what, "kills")) return kills(words[2]);
    if (!strcmp(what, "numbers")) return numbers();
    if (!strcmp(what, "storm")) return storm(atoi(words[2]) ? SA_RESTART : 0, words[3], 100);
    if (!strcmp(what, "waits")) return waits();
    return 2;
}
