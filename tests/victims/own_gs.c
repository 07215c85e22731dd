// SPDX-License-Identifier: MIT OR Apache-2.0
// No library: two threads whose FS base is 0 and whose GS base is their own, as a run-time of one's own may have them. Each calls
// `outer`, which calls `inner`, and looks at its GS after each call. The exit code is 0, or 1 if a result or a GS was wrong.
#define ROUNDS 20000
#define SYS_getppid 110
#define SYS_clone 56
#define SYS_exit 60
#define SYS_arch_prctl 158
#define SYS_exit_group 231
#define ARCH_SET_GS 0x1001
// CLONE_VM, CLONE_FS, CLONE_FILES, CLONE_SIGHAND, CLONE_THREAD, CLONE_SYSVSEM
#define FLAGS (0x100 | 0x200 | 0x400 | 0x800 | 0x10000 | 0x40000)
#define STACK_BYTES 65536

static unsigned long own[2][8] = { { 1 }, { 2 } };
static char stack[STACK_BYTES] __attribute__((aligned(16)));
static volatile int has_ended, is_wrong;

static long call(long number, long first, long second)
{
	long result;

	__asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(first), "S"(second), "d"(0L) : "rcx", "r11", "r10", "r8", "memory");
	return result;
}

__attribute__((noinline, noclone)) int inner(int x)
{
	__asm__ volatile("" : "+r"(x));
	return x * 3;
}

__attribute__((noinline, noclone)) int outer(int x)
{
	int result = inner(x);

	__asm__ volatile("" : "+r"(result));
	return result + 1;
}

static void work(unsigned long name, int rounds)
{
	unsigned long gs;

	for (int i = 0; i < rounds; i++) {
		if (outer(i) != i * 3 + 1)
			is_wrong = 1;
		__asm__ volatile("mov %%gs:0, %0" : "=r"(gs));
		if (gs != name)
			is_wrong = 1;
		call(SYS_getppid, 0, 0);
	}
}

static void second(void)
{
	call(SYS_arch_prctl, ARCH_SET_GS, (long)own[1]);
	work(2, ROUNDS);
	has_ended = 1;
	call(SYS_exit, 0, 0);
}

__attribute__((used)) void begin(void)
{
	long *top = (long *)(stack + STACK_BYTES - 64), created;

	call(SYS_arch_prctl, ARCH_SET_GS, (long)own[0]);
	work(1, 100);
	top[-1] = (long)second;
	// The new thread has a stack without frames, so it goes on where this says.
	__asm__ volatile("syscall\n\ttest %%rax, %%rax\n\tjnz 1f\n\tcall *-8(%%rsp)\n1:"
			 : "=a"(created)
			 : "a"((long)SYS_clone), "D"((long)FLAGS), "S"(top), "d"(0L)
			 : "rcx", "r11", "r10", "r8", "memory");
	while (!has_ended)
		work(1, 10);
	call(SYS_exit_group, is_wrong, 0);
}

__asm__(".globl _start\n_start:\n\tand $-16, %rsp\n\tcall begin\n");
