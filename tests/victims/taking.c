// Takes the memory of its tracer's maps away, and gives it back. For each line: "take" and "give" do that with all mappings whose name
// has "bpf-map:lost_"; a number calls the probed function and getppid(2) so often, keeping values in all registers that calls preserve.
// "threads" does it 100 times in each of three threads.
// Says how many mappings there were, or how often it was called rightly. Its own faults are counted; "fault" makes one and says how many there were.
#define _GNU_SOURCE
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { THREADS = 3, CALLS = 100 };
static unsigned long word = 3;
static volatile unsigned long faults;
static sigjmp_buf before;

__attribute__((noinline)) unsigned long probed(unsigned long *at)
{
    asm volatile("nopl 0(%%rax)\n nopl 0(%%rax)" : : "r"(at) : "memory");
    return *at + 4;
}

static void on_fault(int signal)
{
    (void)signal;
    faults++;
    siglongjmp(before, 1);
}

// Values in rbx, rbp and r12 to r15 are the same after the call.
static int call_rightly(void)
{
    unsigned long result, kept;
    asm volatile("push %%rbp\n mov $101, %%ebx\n mov $102, %%ebp\n mov $103, %%r12d\n mov $104, %%r13d\n mov $105, %%r14d\n"
                 "mov %%rsp, %%r15\n and $-16, %%rsp\n call probed\n mov %%rsp, %%rcx\n mov %%r15, %%rsp\n and $-16, %%r15\n"
                 "sub %%r15, %%rcx\n add %%rbx, %%rcx\n add %%rbp, %%rcx\n add %%r12, %%rcx\n add %%r13, %%rcx\n add %%r14, %%rcx\n"
                 "pop %%rbp\n"
                 : "=a"(result), "=c"(kept)
                 : "D"(&word)
                 : "rbx", "r12", "r13", "r14", "r15", "rdx", "rsi", "r8", "r9", "r10", "r11", "memory", "cc");
    return result == 7 && kept == 101 + 102 + 103 + 104 + 105;
}

static void *call_often(void *right)
{
    for (int at = 0; at < CALLS; at++)
        *(int *)right += call_rightly();
    return right;
}

static int protect(int access)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512];
    unsigned long start, end;
    int count = 0;

    while (fgets(line, sizeof(line), maps))
        if (strstr(line, "bpf-map:lost_") && sscanf(line, "%lx-%lx", &start, &end) == 2)
            count += !mprotect((void *)start, end - start, access);
    fclose(maps);
    return count;
}

int main(void)
{
    struct sigaction action = {.sa_handler = on_fault};
    char line[64];
    pid_t last = 0;

    setvbuf(stdout, NULL, _IOLBF, 0);
    sigaction(SIGSEGV, &action, NULL);
    puts("ready");
    while (fgets(line, sizeof(line), stdin)) {
        if (!strcmp(line, "take\n"))
            printf("%d\n", protect(PROT_NONE));
        else if (!strcmp(line, "give\n"))
            printf("%d\n", protect(PROT_READ | PROT_WRITE));
        else if (!strcmp(line, "threads\n")) {
            pthread_t threads[THREADS];
            int right[THREADS] = {0}, all = 0;
            for (int at = 0; at < THREADS; at++)
                pthread_create(&threads[at], NULL, call_often, &right[at]);
            for (int at = 0; at < THREADS; at++) {
                pthread_join(threads[at], NULL);
                all += right[at];
            }
            printf("%d\n", all);
        } else if (!strcmp(line, "fault\n")) {
            if (!sigsetjmp(before, 1))
                *(volatile int *)16 = 1;
            printf("%lu\n", faults);
        } else {
            int calls = atoi(line), right = 0;
            for (int at = 0; at < calls; at++) {
                pid_t parent = syscall(SYS_getppid);
                right += call_rightly() && parent == (last ? last : parent);
                last = parent;
            }
            printf("%d\n", right);
        }
    }
    return 0;
}
