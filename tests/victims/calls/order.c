// SPDX-License-Identifier: MIT OR Apache-2.0
// Between two marks calls whose six arguments are all known, for a listing in order.
#include "check.h"
#include "../../programs/calls.h"

static long numbers(long number, long seed)
{
	// (Descriptors that are none, so that nothing depends on where things lie.)
	return raw6(number, -seed, seed + 1, seed + 2, seed << 33, ~seed, (long)0x8000000000000000 | seed);
}

static long kept(long seed)
{
	long result;

	// (By arithmetic: who loads the stack pointer is taken for one without a stack.)
	__asm__ volatile("sub $128, %%rsp\n\t"
			 "push %%rbx\n\t"
			 "push %%rbp\n\t"
			 "mov %%rdi, %%rbx\n\t"
			 "lea 1(%%rdi), %%rbp\n\t"
			 "lea 2(%%rdi), %%r12\n\t"
			 "lea 3(%%rdi), %%r13\n\t"
			 "lea 4(%%rdi), %%r14\n\t"
			 "lea 5(%%rdi), %%r15\n\t"
			 "syscall\n\t"
			 "sub $5, %%r15\n\t"
			 "sub %%rbx, %%r15\n\t"
			 "sub %%r15, %%rax\n\t"
			 "pop %%rbp\n\t"
			 "pop %%rbx\n\t"
			 "add $128, %%rsp"
			 : "=a"(result)
			 : "a"(KEPT), "D"(seed)
			 : "rcx", "r11", "r12", "r13", "r14", "r15", "memory");
	return result;
}

int main(void)
{
	long zero = 0, user = getuid();

	RAW(MARK, MARK_BEGIN);
	for (long seed = 1; seed < 50; seed++) {
		EQUAL(numbers(SYS_close, seed), -EBADF);
		EQUAL(numbers(SYS_write, seed), -EBADF);
		EQUAL(kept(seed << 32), -ENOSYS);
		EQUAL(numbers(SYS_fstat, seed), -EBADF);
		EQUAL(numbers(SYS_getuid, seed), user);
		EQUAL(numbers(600 + seed, seed), -ENOSYS);
		EQUAL(numbers(-seed, seed), -ENOSYS);
		EQUAL(numbers(seed << 40 | SYS_close, seed), -EBADF);
		EQUAL(raw6(SYS_openat, -100, 0, seed, 4, 5, 6), -EFAULT);
		EQUAL(raw6(SYS_kill, 0x7fffffff, seed % 64, 3, 4, 5, 6), -ESRCH);
		EQUAL(raw6(SYS_clock_nanosleep, 1000 + seed, 0, 0, 0, 5, 6), -EINVAL);
		EQUAL(syscall(SYS_close, -seed, 2, 3, 4, 5, 6), -1);
		zero += errno != EBADF;
	}
	RAW(MARK, MARK_END);
	EQUAL(zero, 0);
	return faults != 0;
}
