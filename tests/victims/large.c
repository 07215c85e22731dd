// A program whose file is larger than what the server analyses while others wait. Calls a function 1000 times, says "ready", and on each
// line of input does it again and says how often it has called it so far.
#include <stdio.h>

// Code that nobody runs.
asm(".text\n.globl large\n.type large, @function\nlarge: .fill 48 << 20, 1, 0x90\n ret\n.size large, . - large\n");
static unsigned long calls;

__attribute__((noinline)) void work(void)
{
    asm volatile("nopl 0(%%rax)\n nop" : : : "memory");
    calls++;
}

static void call_all(void)
{
    for (int i = 0; i < 1000; i++)
        work();
}

int main(void)
{
    char line[16];
    setvbuf(stdout, 0, _IOLBF, 0);
    call_all();
    puts("ready");
    while (fgets(line, sizeof line, stdin)) {
        call_all();
        printf("%lu\n", calls);
    }
    return 0;
}
