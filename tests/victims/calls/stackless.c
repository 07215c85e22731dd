// SPDX-License-Identifier: MIT OR Apache-2.0
// Calls while the stack pointer leads nowhere, which the kernel does not mind as long as no signal comes.
#include "check.h"
#include <sys/mman.h>

static long call_with_stack(unsigned long stack, long number)
{
	long result;

	__asm__ volatile("mov %%rsp, %%r12; mov %2, %%rsp; syscall; cmp %2, %%rsp; mov %%r12, %%rsp; je 1f; mov $-1, %%rax; 1:"
			 : "=a"(result)
			 : "0"(number), "r"(stack)
			 : "rcx", "r11", "r12", "memory", "cc");
	return result;
}

int main(void)
{
	char *page = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	EQUAL(mprotect(page, 4096, PROT_NONE), 0);
	// Less and less of it, then none, then no address at all.
	for (int left = 4096; left >= 0; left -= 64)
		EQUAL(call_with_stack((unsigned long)page + 4096 + left, SYS_getpid), getpid());
	EQUAL(call_with_stack((unsigned long)page + 64, SYS_getpid), getpid());
	EQUAL(call_with_stack(0, SYS_getpid), getpid());
	EQUAL(call_with_stack(0x8000000000000001, SYS_getpid), getpid());
	return faults != 0;
}
