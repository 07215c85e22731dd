// SPDX-License-Identifier: MIT OR Apache-2.0
// What a handler sees of the call that it interrupted: where it is, and the registers. musl's cancellation lives on that.
#include "check.h"
#include <sys/time.h>
#include <ucontext.h>

// A site whose ends are known, with marks in two registers.
long call_here(long number, long first, const void *second, long third);
extern char here[], behind[];
__asm__(".globl call_here, here, behind\n"
	"call_here: push %rbx; push %r12; mov $0x1234, %ebx; mov $0x5678, %r12d\n"
	"	mov %rdi, %rax; mov %rsi, %rdi; mov %rdx, %rsi; mov %rcx, %rdx\n"
	"here:	syscall\n"
	"behind: pop %r12; pop %rbx; ret\n");

static volatile int handled, restarts;
static int pipes[2];

static void look(int number, siginfo_t *info, void *context)
{
	greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
	struct itimerval never = { 0 };

	(void)number;
	(void)info;
	setitimer(ITIMER_REAL, &never, NULL);
	handled++;
	EQUAL(registers[REG_RBX], 0x1234);
	EQUAL(registers[REG_R12], 0x5678);
	EQUAL(registers[REG_RCX], behind);
	EQUAL(registers[REG_RDI], pipes[0]);
	EQUAL(registers[REG_RDX], 1);
	if (!restarts) {
		EQUAL(registers[REG_RIP], behind);
		EQUAL(registers[REG_RAX], -EINTR);
		return;
	}
	// It would be made again.
	EQUAL(registers[REG_RIP], here);
	EQUAL(registers[REG_RAX], SYS_read);
	if (restarts == 2) {
		// As cancellation does: it goes on behind it.
		registers[REG_RIP] = (greg_t)behind;
		registers[REG_RAX] = -ECANCELED;
	} else {
		EQUAL(RAW(SYS_write, pipes[1], "x", 1), 1);
	}
}

static void handle(int flags)
{
	struct sigaction action = { .sa_sigaction = look, .sa_flags = SA_SIGINFO | flags };

	EQUAL(sigaction(SIGALRM, &action, NULL), 0);
}

int main(void)
{
	static const long results[] = { -EINTR, 1, -ECANCELED };
	struct itimerval timer = { { 2, 0 }, { 0, 40000 } };
	char byte;

	EQUAL(pipe(pipes), 0);
	for (int round = 0; round < 12; round++) {
		restarts = round % 3;
		// (pause has no use for its arguments, and ends whatever the flag.)
		handle(restarts ? SA_RESTART : 0);
		EQUAL(setitimer(ITIMER_REAL, &timer, NULL), 0);
		EQUAL(call_here(restarts ? SYS_read : SYS_pause, pipes[0], &byte, 1), results[restarts]);
		EQUAL(handled, round + 1);
	}
	return faults != 0;
}
