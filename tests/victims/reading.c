// Calls a probed function with addresses that a program is to read, of memory that is there and that is not, in every state that a
// thread and its signals can be in. Says "ready", and after each line, whose word says what to do, how many addresses of either kind
// there were, how many writes succeeded and failed, the sum of the words that can be read, and how often it said its name.
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>
#include "suspended.h"

// Room for a jump. (Not one instruction of 5 bytes: under uprobes of Linux 6.18 on such ones this victim does not survive `forks`.)
#define ROOM "nopl 0(%%rax)\n nop"
enum { PAGE = 4096 };
extern char **environ;
static unsigned long good, bad, written, refused, sum, told;
static char *page, *closed, *gone, *behind_end, *constant;

__attribute__((noinline)) void look(const void *address) { asm volatile(ROOM : : "r"(address) : "memory"); }
__attribute__((noinline)) void scribble(void *address, unsigned long word)
{
    asm volatile(ROOM : : "r"(address), "r"(word) : "memory");
}

__attribute__((noinline)) void tell(const char *name, unsigned long user)
{
    asm volatile(ROOM : : "r"(name), "r"(user) : "memory");
}

static void look_at_good(const char *address)
{
    unsigned long word;
    memcpy(&word, address, sizeof word);
    look(address);
    __atomic_fetch_add(&good, 1, __ATOMIC_RELAXED);
    __atomic_fetch_add(&sum, word, __ATOMIC_RELAXED);
}

static void look_at_bad(const void *address)
{
    look(address);
    __atomic_fetch_add(&bad, 1, __ATOMIC_RELAXED);
}

// Good ones and bad ones of every kind.
static void look_around(void)
{
    look_at_good(page + 3);
    look_at_bad(0);
    look_at_bad((void *)1);
    look_at_bad((void *)0x8000000000000000);
    look_at_bad((void *)0xffff888000000000);
    look_at_bad((void *)0x800000000000);
    look_at_bad((void *)-1L);
    look_at_good(page + PAGE - 77);
    look_at_bad(closed + 8);
    look_at_bad(gone);
    look_at_bad(behind_end + PAGE);
    look_at_good(constant);
}

static void tell_own(const char *name)
{
    char padded[16] = "";
    strncpy(padded, name, 15);
    tell(padded, (unsigned long)getgid() << 32 | getuid());
    __atomic_fetch_add(&told, 1, __ATOMIC_RELAXED);
}

static pthread_barrier_t turn;

static void *tell_in_thread(void *name)
{
    // Its creator's name, then its own.
    tell_own(name);
    for (int i = 0; i < 100; i++) {
        char own[16];
        snprintf(own, sizeof own, "thread %d", i);
        prctl(PR_SET_NAME, own);
        for (int k = 0; k < 5; k++)
            tell_own(own);
    }
    for (int i = 0; i < 5; i++) {
        pthread_barrier_wait(&turn);
        pthread_barrier_wait(&turn);
        tell_own("thread 99");
    }
    return 0;
}

// Names and users change.
static void names(void)
{
    char name[32];
    int as_root = !getuid();
    pthread_barrier_init(&turn, 0, 2);
    for (int i = 0; i < 300; i++) {
        snprintf(name, sizeof name, "a name that is too long %d" + i % 20, i);
        prctl(PR_SET_NAME, name);
        tell_own(name);
        if (as_root && (setresuid(i, -1, 0) || setresgid(2 * i, -1, 0)))
            abort();
        tell_own(name);
        tell_own(name);
        if (i % 30 == 0) {
            pthread_t thread;
            pthread_create(&thread, 0, tell_in_thread, name);
            // (The C library tells all threads of a new user.)
            for (int k = 0; k < 5; k++) {
                pthread_barrier_wait(&turn);
                if (as_root && setresuid(k, -1, 0))
                    abort();
                pthread_barrier_wait(&turn);
            }
            pthread_join(thread, 0);
            pid_t child = fork();
            if (!child) {
                tell_own(name);
                if (as_root && setuid(1))
                    abort();
                tell_own(name);
                _exit(0);
            }
            waitpid(child, 0, 0);
            told += 2;
        }
    }
    if (as_root && (setresuid(0, 0, 0) || setresgid(0, 0, 0)))
        abort();
    prctl(PR_SET_NAME, "reading");
    tell_own("reading");
}

static void write_around(void)
{
    static unsigned long word;
    for (unsigned long i = 1; i < 100; i++) {
        scribble(&word, i);
        written++;
        // (Nothing is written if nobody probes.)
        if (word != i && word != 0)
            abort();
    }
    scribble(constant, 1);
    scribble((void *)&look, 1);
    scribble(closed, 1);
    scribble(gone, 1);
    scribble(behind_end + PAGE, 1);
    scribble(0, 1);
    refused += 6;
}

static volatile sig_atomic_t came;
static void *volatile wanted;
static stack_t alternate;

// A handler that mends what was missing, as managed languages do.
static void on_fault(int signal, siginfo_t *info, void *context)
{
    ucontext_t *thread = context;
    sigset_t now;
    char here;
    sigprocmask(SIG_BLOCK, 0, &now);
    if (info->si_addr != wanted || info->si_code <= 0 || sigismember(&now, SIGUSR2) != 1 || !thread->uc_mcontext.gregs[REG_RIP])
        abort();
    if (alternate.ss_sp && (&here < (char *)alternate.ss_sp || &here >= (char *)alternate.ss_sp + alternate.ss_size))
        abort();
    came++;
    look_around();
    if (mprotect((void *)((unsigned long)wanted & -PAGE), PAGE, PROT_READ | PROT_WRITE))
        abort();
}

static void touch_closed(int rounds)
{
    for (int i = 0; i < rounds; i++) {
        mprotect(closed, PAGE, PROT_NONE);
        wanted = closed + i % PAGE;
        *(volatile char *)wanted = 1;
        mprotect(closed, PAGE, PROT_NONE);
        look_around();
    }
}

// Children that share the memory have actions of their own.
static void spawn(void)
{
    char *arguments[] = { "true", 0 };
    pid_t child;
    if (posix_spawnp(&child, "true", 0, 0, arguments, environ) || waitpid(child, 0, 0) != child || system("true"))
        abort();
    child = vfork();
    if (!child) {
        signal(SIGSEGV, SIG_IGN);
        signal(SIGBUS, SIG_DFL);
        execlp("true", "true", (char *)0);
        _exit(1);
    }
    waitpid(child, 0, 0);
}

// Signals that are sent wait where they are blocked.
static void await_blocked(void)
{
    sigset_t some, before;
    siginfo_t info;
    sigemptyset(&some);
    sigaddset(&some, SIGSEGV);
    sigaddset(&some, SIGBUS);
    sigprocmask(SIG_BLOCK, &some, &before);
    look_around();
    raise(SIGSEGV);
    kill(getpid(), SIGBUS);
    look_around();
    for (int i = 0; i < 2; i++)
        if (sigtimedwait(&some, &info, &(struct timespec){ 5 }) < 0 || info.si_pid != getpid())
            abort();
    sigprocmask(SIG_SETMASK, &before, 0);
    look_around();
}

static void own(void)
{
    struct sigaction action = { .sa_sigaction = on_fault, .sa_flags = SA_SIGINFO }, found;
    sigaddset(&action.sa_mask, SIGUSR2);
    sigaction(SIGSEGV, &action, 0);
    sigaction(SIGSEGV, 0, &found);
    if (found.sa_sigaction != on_fault || found.sa_flags & SA_ONSTACK || sigismember(&found.sa_mask, SIGUSR2) != 1)
        abort();
    alternate = (stack_t){ 0 };
    touch_closed(200);
    spawn();
    touch_closed(1);
    alternate = (stack_t){ .ss_sp = malloc(65536), .ss_size = 65536 };
    sigaltstack(&alternate, 0);
    action.sa_flags |= SA_ONSTACK;
    sigaction(SIGSEGV, &action, 0);
    touch_closed(200);
    if (came % 401)
        abort();
    signal(SIGSEGV, SIG_DFL);
}

static void *touch(void *arguments)
{
    for (int i = 0; i < 200; i++)
        look_around();
    return arguments;
}

static void in_threads(void)
{
    pthread_t all[4];
    for (int i = 0; i < 4; i++)
        pthread_create(&all[i], 0, touch, 0);
    for (int i = 0; i < 4; i++)
        pthread_join(all[i], 0);
}

static void on_signal(int signal) { look_around(); }

static int blocks(int signal)
{
    sigset_t now;
    sigprocmask(SIG_BLOCK, 0, &now);
    return sigismember(&now, signal);
}

static void *see_blocked(void *arguments)
{
    if (!blocks(SIGSEGV) || !blocks(SIGBUS) || !blocks(SIGUSR2))
        abort();
    return arguments;
}

static void blocked(void)
{
    sigset_t every, before, some, old;
    pthread_t thread;
    sigfillset(&every);
    sigprocmask(SIG_SETMASK, &every, &before);
    see_blocked(0);
    pthread_create(&thread, 0, see_blocked, 0);
    pthread_join(thread, 0);
    sigemptyset(&some);
    sigaddset(&some, SIGSEGV);
    sigprocmask(SIG_UNBLOCK, &some, &old);
    if (blocks(SIGSEGV) || !blocks(SIGBUS) || !sigismember(&old, SIGSEGV))
        abort();
    sigprocmask(SIG_BLOCK, &some, &old);
    if (!blocks(SIGSEGV) || sigismember(&old, SIGSEGV) || !sigismember(&old, SIGBUS))
        abort();
    look_around();
    in_threads();
    struct sigaction action = { .sa_handler = on_signal };
    sigfillset(&action.sa_mask);
    sigaction(SIGUSR1, &action, 0);
    sigprocmask(SIG_SETMASK, &before, 0);
    if (blocks(SIGSEGV) || blocks(SIGBUS))
        abort();
    raise(SIGUSR1);
}

static void forks(void)
{
    for (int i = 0; i < 10; i++) {
        int status;
        pid_t child = fork();
        if (!child) {
            look_around();
            _exit(0);
        }
        waitpid(child, &status, 0);
        if (status)
            abort();
        good += 3, bad += 9;
        for (int k = 0; k < 3; k++) {
            const char *address = k == 0 ? page + 3 : k == 1 ? page + PAGE - 77 : constant;
            unsigned long word;
            memcpy(&word, address, sizeof word);
            sum += word;
        }
        child = vfork();
        if (!child) {
            look_around();
            execlp("true", "true", (char *)0);
            _exit(1);
        }
        waitpid(child, &status, 0);
        if (status)
            abort();
        char *arguments[] = { "true", 0 };
        if (posix_spawnp(&child, "true", 0, 0, arguments, environ) || waitpid(child, &status, 0) != child || status)
            abort();
    }
}

static volatile int ends;

static void *map_and_unmap(void *address)
{
    while (!ends) {
        munmap(address, PAGE);
        mmap(address, PAGE, PROT_READ | PROT_WRITE, MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        mprotect(address, PAGE, PROT_NONE);
        mprotect(address, PAGE, PROT_READ);
    }
    return 0;
}

// What is read may be there or not: only the process is to live.
static void racing(void)
{
    char *address = mmap(0, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    pthread_t other;
    ends = 0;
    pthread_create(&other, 0, map_and_unmap, address);
    for (int i = 0; i < 200000; i++)
        look(address + 8);
    ends = 1;
    pthread_join(other, 0);
}

static void suspended(void)
{
    handle_suspended(on_signal);
    look_around();
}

static sigjmp_buf back;
static void leave(int signal) { siglongjmp(back, 1); }

static void jumping(void)
{
    signal(SIGSEGV, leave);
    signal(SIGBUS, leave);
    for (int i = 0; i < 200; i++) {
        if (!sigsetjmp(back, 1))
            *(volatile char *)(i % 2 ? gone : behind_end + PAGE) = 1;
        look_around();
    }
    signal(SIGSEGV, SIG_DFL);
    signal(SIGBUS, SIG_DFL);
}

static int overflow(volatile int depth)
{
    volatile char room[1000] = { depth };
    return depth < 0 ? room[5] : overflow(depth + 1) + room[depth % 1000];
}

static void on_overflow(int signal) { _exit(7); }

static void fault_again(int signal) { *(volatile char *)8 = 1; }

static void send_again(int signal, siginfo_t *info, void *context)
{
    struct sigaction none = { .sa_handler = SIG_DFL };
    sigaction(signal, &none, 0);
    syscall(SYS_rt_tgsigqueueinfo, getpid(), gettid(), signal, info);
}

static void end(const char *how)
{
    if (!strcmp(how, "fault")) *(volatile char *)0 = 1;
    if (!strcmp(how, "bus")) *(volatile char *)(behind_end + PAGE) = 1;
    if (!strcmp(how, "raise")) raise(SIGSEGV);
    if (!strcmp(how, "ignored")) { signal(SIGSEGV, SIG_IGN); raise(SIGSEGV); *(volatile char *)0 = 1; }
    if (!strcmp(how, "overflow")) overflow(0);
    if (!strcmp(how, "handled")) {
        struct sigaction action = { .sa_handler = on_overflow, .sa_flags = SA_ONSTACK };
        sigaltstack(&(stack_t){ .ss_sp = malloc(65536), .ss_size = 65536 }, 0);
        sigaction(SIGSEGV, &action, 0);
        overflow(0);
    }
    if (!strcmp(how, "again")) {
        signal(SIGSEGV, fault_again);
        *(volatile char *)0 = 1;
    }
    if (!strcmp(how, "sent again")) {
        struct sigaction action = { .sa_sigaction = send_again, .sa_flags = SA_SIGINFO };
        sigaction(SIGSEGV, &action, 0);
        if (!mmap(0, 1, 0, 0, -1, 0))
            return;
        syscall(SYS_rt_tgsigqueueinfo, getpid(), gettid(), SIGSEGV,
                &(siginfo_t){ .si_signo = SIGSEGV, .si_code = SEGV_MAPERR });
    }
    if (!strcmp(how, "strict")) {
        syscall(SYS_prctl, PR_SET_SECCOMP, 1);
        *(volatile char *)0 = 1;
    }
    // A handler does not help who blocks the signal.
    if (!strcmp(how, "while blocked")) {
        sigset_t every;
        signal(SIGSEGV, on_overflow);
        sigfillset(&every);
        sigprocmask(SIG_SETMASK, &every, 0);
        *(volatile char *)0 = 1;
    }
    // Without SA_ONSTACK there is no room for the handler.
    if (!strcmp(how, "unhandled")) {
        sigaltstack(&(stack_t){ .ss_sp = malloc(65536), .ss_size = 65536 }, 0);
        signal(SIGSEGV, on_overflow);
        overflow(0);
    }
    if (!strcmp(how, "once")) {
        struct sigaction action = { .sa_handler = on_signal, .sa_flags = SA_RESETHAND };
        sigaction(SIGSEGV, &action, 0);
        *(volatile char *)0 = 1;
    }
}

int main(void)
{
    char line[32];
    FILE *file = tmpfile();
    setvbuf(stdout, 0, _IOLBF, 0);
    page = mmap(0, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(page, 'x', PAGE);
    page[40] = 0;
    munmap(page + PAGE, PAGE);
    closed = mmap(0, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    // (What was unmapped may be mapped again. There nobody maps anything who does not ask for it.)
    gone = (char *)0x200000;
    if (!file || ftruncate(fileno(file), 10))
        return 1;
    behind_end = mmap(0, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fileno(file), 0);
    constant = mmap(0, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    puts("ready");
    while (fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\n")] = 0;
        look_around();
        if (!strcmp(line, "write")) write_around();
        if (!strcmp(line, "names")) names();
        if (!strcmp(line, "own")) own();
        if (!strcmp(line, "threads")) in_threads();
        if (!strcmp(line, "blocked")) blocked();
        if (!strcmp(line, "forks")) forks();
        if (!strcmp(line, "racing")) racing();
        if (!strcmp(line, "waits")) await_blocked();
        if (!strcmp(line, "unmapped stack")) {
            stack_t stack = { .ss_sp = mmap(0, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), .ss_size = 65536 };
            sigaltstack(&stack, 0);
            munmap(stack.ss_sp, stack.ss_size);
            look_around();
        }
        if (!strcmp(line, "suspended")) suspended();
        if (!strcmp(line, "jumping")) jumping();
        end(line);
        printf("%lu %lu %lu %lu %lu %lu\n", good, bad, written, refused, sum, told);
    }
    return 0;
}
