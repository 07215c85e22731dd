// Functions in which a probe has no room for a jump: of one byte, entered in their middle, with a call that returns right behind
// the probed instruction, with a prefix that is jumped over. Says "ready", and how often each was called after each line, whose word
// says what to do.
#define _GNU_SOURCE
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include "suspended.h"

enum { KINDS = 6 };
// What follows the first instructions makes jumps that rely on it lead to no address of user memory, in code for fixed addresses.
asm(".text\n"
    ".macro function name\n .p2align 4\n .globl \\name\n .type \\name, @function\n \\name:\n .endm\n"
    ".macro end name\n .size \\name, . - \\name\n .endm\n"
    "function one_byte\n ret\n end one_byte\n xchg %bh, %dh\n xchg %bh, %dh\n xchg %bh, %dh\n"
    "function entered\n push %rbx\n entered_at: mov %edi, %eax\n pop %rbx\n ret\n end entered\n"
    "function looping\n mov %edi, %eax\n 1: dec %eax\n jnz 1b\n mov $7, %eax\n ret\n end looping\n"
    "function calling\n call *%rsi\n ror $200, %bl\n ret\n end calling\n"
    "function prefixed\n test %edi, %edi\n jz 1f\n lock\n 1: incl (%rdx)\n ret\n end prefixed\n"
    "function popping\n push %rax\n pop %rcx\n ret $0\n end popping\n"
    "function before_row\n ret\n end before_row\n"
    " .globl row\n .type row, @function\n"
    " row: lea 1(%rdi), %rax\n lea 1(%rax), %rax\n lea 1(%rax), %rax\n lea 1(%rax), %rax\n ret\n end row\n"
    "function entering_from_elsewhere\n push %rbx\n jmp entered_at\n end entering_from_elsewhere\n");
void one_byte(void);
int entered(int n), entering_from_elsewhere(int n), looping(int n);
void before_row(void);
unsigned long row(unsigned long n);
void calling(int n, void (*function)(void)), popping(void), prefixed(int n, void *no, unsigned *word);

static unsigned long counts[KINDS];
static unsigned word;
static volatile sig_atomic_t came, seen;

static void nothing(void)
{
}

static void call_all(unsigned rounds)
{
    for (unsigned i = 0; i < rounds; i++) {
        one_byte();
        if (entered(i) != i || entering_from_elsewhere(i) != i)
            abort();
        if (looping(3) != 7)
            abort();
        calling(i, nothing);
        prefixed(i & 1, 0, &word);
        popping();
        before_row();
        if (row(i) != i + 4UL)
            abort();
    }
    for (int kind = 0; kind < KINDS; kind++)
        __atomic_fetch_add(&counts[kind], rounds, __ATOMIC_RELAXED);
}

static void on_signal(int signal)
{
    came++;
    call_all(1);
}

static void *work(void *rounds)
{
    call_all((unsigned long)rounds);
    return rounds;
}

static void threads(void)
{
    pthread_t all[8];
    for (int i = 0; i < 8; i++)
        pthread_create(&all[i], 0, work, (void *)1000UL);
    for (int i = 0; i < 8; i++)
        pthread_join(all[i], 0);
}

// With every signal blocked, by each of the means that block some.
static void blocked(void)
{
    sigset_t every, before;
    sigfillset(&every);
    sigprocmask(SIG_BLOCK, &every, 0);
    call_all(100);
    sigprocmask(SIG_UNBLOCK, &every, 0);
    pthread_sigmask(SIG_SETMASK, &every, &before);
    call_all(100);
    threads();
    FILE *other = popen("echo other", "r");
    char line[16];
    if (!fgets(line, sizeof line, other))
        abort();
    pclose(other);
    sigprocmask(SIG_SETMASK, &before, 0);
    struct sigaction action = { .sa_handler = on_signal };
    sigfillset(&action.sa_mask);
    sigaction(SIGUSR1, &action, 0);
    raise(SIGUSR1);
    struct sigaction found;
    sigaction(SIGUSR1, 0, &found);
    if (found.sa_handler != on_signal || sigismember(&found.sa_mask, SIGTRAP) != 1)
        abort();
}

// Makes its frame return with every signal blocked.
static void on_context(int signal, siginfo_t *info, void *context)
{
    sigfillset(&((ucontext_t *)context)->uc_sigmask);
    call_all(1);
}

static void by_frame(void)
{
    sigset_t every;
    sigfillset(&every);
    struct sigaction action = { .sa_sigaction = on_context, .sa_flags = SA_SIGINFO };
    sigaction(SIGUSR2, &action, 0);
    raise(SIGUSR2);
    call_all(10);
    sigprocmask(SIG_UNBLOCK, &every, 0);
}

static void forks(void)
{
    for (int i = 0; i < 5; i++) {
        int status = 0;
        pid_t child = fork();
        if (!child) {
            call_all(10);
            _exit(0);
        }
        waitpid(child, &status, 0);
        if (status)
            abort();
        counts[0] += 10, counts[1] += 10, counts[2] += 10, counts[3] += 10, counts[4] += 10, counts[5] += 10;
        child = vfork();
        if (!child) {
            one_byte();
            execlp("true", "true", (char *)0);
            _exit(1);
        }
        waitpid(child, &status, 0);
        if (status)
            abort();
        counts[0]++;
        // A process without its creator's handlers.
        unsigned long arguments[8] = { 1UL << 32, 0, 0, 0, SIGCHLD };
        child = syscall(435, arguments, sizeof arguments);
        if (!child) {
            one_byte();
            _exit(0);
        }
        waitpid(child, &status, 0);
        if (status)
            abort();
        counts[0]++;
    }
}

static jmp_buf back;

static void on_own_trap(int signal, siginfo_t *info, void *context)
{
    seen++;
    call_all(1);
    if (seen == 3)
        longjmp(back, 1);
}

// The process's own use of the signal.
static void own(void)
{
    struct sigaction action = { .sa_sigaction = on_own_trap, .sa_flags = SA_SIGINFO | SA_NODEFER }, found;
    sigaction(SIGTRAP, 0, &found);
    if (found.sa_handler != SIG_DFL)
        abort();
    sigaction(SIGTRAP, &action, 0);
    sigaction(SIGTRAP, 0, &found);
    if (found.sa_sigaction != on_own_trap || !(found.sa_flags & SA_NODEFER))
        abort();
    asm volatile("int3");
    raise(SIGTRAP);
    if (!setjmp(back))
        asm volatile("int3");
    call_all(10);
    signal(SIGTRAP, SIG_IGN);
    raise(SIGTRAP);
    call_all(10);
    signal(SIGTRAP, SIG_DFL);
    if (seen != 3)
        abort();
}

// Waits with every other signal blocked; a handler that comes then has that mask.
static void suspend(void)
{
    handle_suspended(on_signal);
    call_all(10);
}

int main(void)
{
    char line[32];
    setvbuf(stdout, 0, _IOLBF, 0);
    // (At once: probes that are placed late miss these.)
    before_row();
    row(0);
    puts("ready");
    while (fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\n")] = 0;
        call_all(100);
        if (!strcmp(line, "threads")) threads();
        if (!strcmp(line, "blocked")) blocked();
        if (!strcmp(line, "frame")) by_frame();
        if (!strcmp(line, "forks")) forks();
        if (!strcmp(line, "own")) own();
        if (!strcmp(line, "suspend")) suspend();
        if (!strcmp(line, "die")) raise(SIGTRAP);
        if (!strcmp(line, "trap")) asm volatile("int3");
        if (!strcmp(line, "ignored")) { signal(SIGTRAP, SIG_IGN); asm volatile("int3"); }
        for (int kind = 0; kind < KINDS; kind++)
            printf("%lu%c", counts[kind], kind + 1 < KINDS ? ' ' : '\n');
    }
    return 0;
}
