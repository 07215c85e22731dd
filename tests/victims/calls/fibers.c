// SPDX-License-Identifier: MIT OR Apache-2.0
// Calls on stacks of one page each, with nothing mapped below.
#include "check.h"
#include <sys/mman.h>
#include <ucontext.h>

#define FIBERS 64
#define ROUNDS 20
#define PAGE 4096

static ucontext_t fibers[FIBERS], scheduler;
static long made[FIBERS];
static int null_file;

static void fiber(int number)
{
	for (int round = 0; round < ROUNDS; round++) {
		if (RAW(SYS_getpid) == getpid() && write(null_file, "x", 1) == 1 && RAW(SYS_close, -1) == -EBADF)
			made[number]++;
		swapcontext(&fibers[number], &scheduler);
	}
}

int main(void)
{
	null_file = RAW(SYS_openat, -100, "/dev/null", 1);
	for (int i = 0; i < FIBERS; i++) {
		char *stack = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

		EQUAL(mprotect(stack, PAGE, PROT_NONE), 0);
		getcontext(&fibers[i]);
		fibers[i].uc_stack.ss_sp = stack + PAGE;
		fibers[i].uc_stack.ss_size = PAGE;
		fibers[i].uc_link = &scheduler;
		makecontext(&fibers[i], (void (*)(void))fiber, 1, i);
	}
	for (int round = 0; round <= ROUNDS; round++)
		for (int i = 0; i < FIBERS; i++)
			swapcontext(&scheduler, &fibers[i]);
	for (int i = 0; i < FIBERS; i++)
		EQUAL(made[i], ROUNDS);
	return faults != 0;
}
