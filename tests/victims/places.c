// Faults at instructions that a handler knows by their distance from the function's entry. For each line: calls all functions, and says how many
// faults there were, and whether the results are right.
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

enum { PAGE = 4096 };
// (Labels and constants would be places that an indirect jump may lead to.)
#define AT(function, bytes) ((greg_t)functions[function] + (bytes))
enum { SKIPPED, OPENED, LATE, NESTED };
static unsigned long faults;
static char *page;

// Its handler goes on elsewhere.
__attribute__((naked, noinline)) unsigned long skipped(unsigned long *at)
{
    asm("mov $1, %eax\n mov (%rdi), %rax\n ret\n add $41, %eax\n ret");
}

// Its handler makes the memory readable and lets the instruction run again.
__attribute__((naked, noinline)) unsigned long opened(unsigned long *at)
{
    asm("nop\n mov (%rdi), %rax\n add $2, %rax\n ret");
}

// The instruction is a byte behind the function's entry, and the next one begins within a jump, too.
__attribute__((naked, noinline)) unsigned long late(unsigned long *at)
{
    asm("push %rbx\n movb $1, (%rdi)\n mov $7, %eax\n pop %rbx\n ret");
}

// Faults in a handler of a fault.
__attribute__((naked, noinline)) unsigned long nested(unsigned long *at)
{
    asm("nop\n mov 8(%rdi), %rax\n mov $9, %eax\n ret");
}

static unsigned long (*volatile functions[])(unsigned long *) = {skipped, opened, late, nested};

static void on_fault(int signal, siginfo_t *info, void *context)
{
    greg_t *at = &((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];

    (void)signal, (void)info;
    faults++;
    if (*at == AT(SKIPPED, 5)) {
        *at = AT(SKIPPED, 9);
    } else if (*at == AT(OPENED, 1)) {
        mprotect(page, PAGE, PROT_READ);
    } else if (*at == AT(LATE, 1)) {
        *at = AT(LATE, 4);
        if (nested((void *)24) != 9)
            _exit(4);
    } else if (*at == AT(NESTED, 1)) {
        *at = AT(NESTED, 5);
    } else {
        _exit(3);
    }
}

int main(void)
{
    static char stack[1 << 16];
    stack_t alternate = {.ss_sp = stack, .ss_size = sizeof(stack)};
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK};
    char line[16];

    setvbuf(stdout, NULL, _IOLBF, 0);
    page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    *(unsigned long *)page = 5;
    sigaltstack(&alternate, NULL);
    sigaction(SIGSEGV, &action, NULL);
    puts("ready");
    while (fgets(line, sizeof(line), stdin)) {
        int all = 1;

        mprotect(page, PAGE, PROT_NONE);
        all &= skipped((void *)8) == 42;
        all &= opened((unsigned long *)page) == 7;
        all &= late((void *)16) == 7;
        printf("%lu %d\n", faults, all);
    }
    return 0;
}
