// Threads that write to pages of which each write faults, as a garbage collector's write barriers do: the handler, which blocks all signals,
// makes the page writable. Says "ready", and after a line whether all writes are there.
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>

enum { THREADS = 3, PAGE = 4096 };
static char *pages;
static volatile int is_over;
static unsigned long writes[THREADS];

__attribute__((noinline)) void store(unsigned long *at, unsigned long word)
{
    *at = word;
    asm volatile("nopl 0(%%rax)" : : : "memory");
}

static void on_fault(int signal, siginfo_t *info, void *context)
{
    (void)signal, (void)context;
    mprotect((void *)((unsigned long)info->si_addr & -PAGE), PAGE, PROT_READ | PROT_WRITE);
}

static void *write_on(void *number)
{
    char *page = pages + (long)number * PAGE;

    while (!is_over) {
        mprotect(page, PAGE, PROT_READ);
        store((unsigned long *)page, ++writes[(long)number]);
    }
    return number;
}

int main(void)
{
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO};
    pthread_t threads[THREADS];
    char line[16];
    int right = 1;

    pages = mmap(NULL, THREADS * PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    sigfillset(&action.sa_mask);
    sigaction(SIGSEGV, &action, NULL);
    for (long number = 0; number < THREADS; number++)
        pthread_create(&threads[number], NULL, write_on, (void *)number);
    puts("ready");
    fflush(stdout);
    fgets(line, sizeof(line), stdin);
    is_over = 1;
    for (int number = 0; number < THREADS; number++) {
        pthread_join(threads[number], NULL);
        right &= *(unsigned long *)(pages + number * PAGE) == writes[number];
    }
    printf("%d\n", right);
    return 0;
}
