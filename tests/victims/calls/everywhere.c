// SPDX-License-Identifier: MIT OR Apache-2.0
// A signal after each number of instructions on the way through some calls, be they the program's or those of somebody in
// between: a parent counts them with ptrace. The handler makes a call, and returns or, with "jump", jumps out. With "points" the
// calls are ones in which threads can be cancelled.
#include "check.h"
#include <fcntl.h>
#include <setjmp.h>
#include <sys/ptrace.h>
#include <sys/wait.h>

#define ROUNDS 1200

static volatile int handled, jumps, points;
static sigjmp_buf out;
static pid_t parent;

static void handle(int number)
{
	(void)number;
	handled++;
	EQUAL(RAW(SYS_getpgid, 0), getpgrp());
	if (jumps)
		siglongjmp(out, 1);
}

// The numbers in registers that calls keep must be there after; so must what lies below the stack pointer.
static long three_calls(pid_t self)
{
	long first, second, third;
	register long kept __asm__("r13") = 0x1313131313131313;
	register long number __asm__("r12") = SYS_getppid;

	__asm__ volatile("movq $-7, -8(%%rsp); movq $-9, -128(%%rsp)\n"
			 "mov $62, %%eax; mov $19, %%esi; syscall\n" // kill(self, SIGSTOP): from here on they are counted
			 "mov %%r12, %%rax; syscall; mov %%rax, %0\n"
			 "mov $3, %%eax; mov $-1, %%rdi; syscall; mov %%rax, %1\n"
			 "mov $600, %%eax; syscall; mov %%rax, %2\n"
			 "cmpq $-7, -8(%%rsp); jne 1f; cmpq $-9, -128(%%rsp); je 2f\n"
			 "1: movq $0, %2\n"
			 "2:"
			 : "=&r"(first), "=&r"(second), "=&r"(third), "+r"(kept), "+r"(number)
			 : "D"((long)self)
			 : "rax", "rsi", "rcx", "r11", "memory", "cc");
	EQUAL(first, parent);
	EQUAL(second, -EBADF);
	EQUAL(third, -ENOSYS);
	EQUAL(kept, 0x1313131313131313);
	EQUAL(number, SYS_getppid);
	return first;
}

static void three_points(pid_t self)
{
	char byte;

	RAW(SYS_kill, self, SIGSTOP);
	EQUAL(read(-1, &byte, 1), -1);
	EQUAL(errno, EBADF);
	EQUAL(write(-1, &byte, 1), -1);
	EQUAL(open("/nowhere/missing", O_RDONLY), -1);
	EQUAL(errno, ENOENT);
}

static int child(void)
{
	pid_t self = getpid();

	EQUAL(ptrace(PTRACE_TRACEME, 0, NULL, NULL), 0);
	signal(SIGUSR1, handle);
	for (volatile int round = 0; round < ROUNDS; round++) {
		if (!sigsetjmp(out, 1)) {
			if (points)
				three_points(self);
			else
				three_calls(self);
			RAW(SYS_kill, self, SIGTSTP);
		}
		EQUAL(handled, round + 1);
	}
	return faults != 0;
}

static int wait_for(pid_t process)
{
	int status = 0;

	while (waitpid(process, &status, 0) != process)
		;
	return status;
}

// Lets it make so many steps, or as many as there are to the end of the round, and then gives it the signal; how it is at
// the next round's begin.
static int disturb(pid_t process, int steps)
{
	long signal = 0;
	int status;

	for (int i = 0; i < steps; i++) {
		EQUAL(ptrace(PTRACE_SINGLESTEP, process, NULL, signal), 0);
		status = wait_for(process);
		if (!WIFSTOPPED(status))
			return status;
		if (WSTOPSIG(status) == SIGTSTP)
			break;
		// What others need to work is not for us.
		signal = WSTOPSIG(status) == SIGTRAP ? 0 : WSTOPSIG(status);
	}
	EQUAL(ptrace(PTRACE_CONT, process, NULL, SIGUSR1), 0);
	while (status = wait_for(process), WIFSTOPPED(status) && WSTOPSIG(status) != SIGSTOP)
		EQUAL(ptrace(PTRACE_CONT, process, NULL, WSTOPSIG(status) == SIGTSTP ? 0 : WSTOPSIG(status)), 0);
	return status;
}

int main(int argc, char **argv)
{
	for (int i = 1; i < argc; i++) {
		jumps |= !strcmp(argv[i], "jump");
		points |= !strcmp(argv[i], "points");
	}
	parent = getpid();
	pid_t process = fork();
	if (!process)
		return child();
	int status = wait_for(process);
	EQUAL(WSTOPSIG(status), SIGSTOP);
	for (int round = 0; round < ROUNDS && WIFSTOPPED(status); round++)
		status = disturb(process, round);
	EQUAL(status, 0);
	return faults != 0;
}
