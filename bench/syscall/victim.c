// SPDX-License-Identifier: MIT OR Apache-2.0
// A process that makes a cheap system call over and over.
//
//   syscall_victim
//
// Prints "ready". For each line "SHAPE N" of input it makes N calls and prints "NANOSECONDS TOTAL": the time of these, and
// how many it has made since the start. SHAPE is how a call is made: "wrapper": by getppid(), which has the number in its
// code; "syscall": by syscall(2), whose number nobody knows before; "user": by getppid(), with syscall user dispatch on and
// the selector saying that calls may pass; "trap": with the selector saying that they may not, so that a handler makes them;
// "written": by code that the process has written, which no file has.
#define _GNU_SOURCE
#include <linux/prctl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include "../measured.h"

#ifndef PR_SET_SYSCALL_USER_DISPATCH
#define PR_SET_SYSCALL_USER_DISPATCH 59
#define PR_SYS_DISPATCH_OFF 0
#define PR_SYS_DISPATCH_ON 1
#define SYSCALL_DISPATCH_FILTER_ALLOW 0
#define SYSCALL_DISPATCH_FILTER_BLOCK 1
#endif

// What calls are made from here is never dispatched: the handler's own, and the return from it. (Where a call ends counts.)
__asm__(".pushsection .text\n"
	"passing_begin:\n"
	"passing_call:\n mov %rdi, %rax\n syscall\n ret\n"
	"passing_return:\n mov $15, %eax\n syscall\n ud2\n"
	"passing_end:\n"
	".popsection\n");
extern char passing_begin[], passing_end[], passing_return[];
extern long passing_call(long number);

static volatile char selector = SYSCALL_DISPATCH_FILTER_ALLOW;
static volatile long trapped;

static void on_trap(int signal, siginfo_t *info, void *context)
{
	ucontext_t *user = context;

	(void)signal;
	trapped++;
	user->uc_mcontext.gregs[REG_RAX] = passing_call(info->si_syscall);
}

// As the kernel's sigaction: with a return of our own.
static struct {
	void (*handler)(int, siginfo_t *, void *);
	unsigned long flags;
	void *restorer;
	unsigned long mask;
} action;

static bool dispatch(bool on)
{
	if (!on)
		return !prctl(PR_SET_SYSCALL_USER_DISPATCH, PR_SYS_DISPATCH_OFF, 0, 0, 0);
	action.handler = on_trap;
	action.flags = SA_SIGINFO | 0x04000000; // SA_RESTORER
	action.restorer = passing_return;
	return !syscall(SYS_rt_sigaction, SIGSYS, &action, NULL, 8) &&
	       !prctl(PR_SET_SYSCALL_USER_DISPATCH, PR_SYS_DISPATCH_ON, passing_begin, passing_end - passing_begin,
		      &selector);
}

// Nanoseconds, or -1 if a result is not what it must be.
static long by_wrapper(long calls)
{
	long parent = getppid(), wrong = 0, begin = nanoseconds();

	for (long i = 0; i < calls; i++)
		wrong += getppid() != parent;
	return wrong ? -1 : nanoseconds() - begin;
}

static long by_syscall(long calls)
{
	long parent = getppid(), wrong = 0, begin = nanoseconds();

	for (long i = 0; i < calls; i++)
		wrong += syscall(SYS_getppid) != parent;
	return wrong ? -1 : nanoseconds() - begin;
}

static long by_written(long calls)
{
	static const unsigned char code[] = "\xb8\x6e\x00\x00\x00\x0f\x05\xc3"; // mov $SYS_getppid, %eax; syscall; ret
	static long (*written)(void);

	if (!written) {
		void *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

		if (page == MAP_FAILED)
			return -1;
		written = (long (*)(void))memcpy(page, code, sizeof(code));
	}
	long parent = getppid(), wrong = 0, begin = nanoseconds();

	for (long i = 0; i < calls; i++)
		wrong += written() != parent;
	return wrong ? -1 : nanoseconds() - begin;
}

static long dispatched(long calls, bool traps)
{
	long parent = getppid(), before = trapped, wrong = 0, begin, took;

	if (!dispatch(true))
		return -1;
	selector = traps ? SYSCALL_DISPATCH_FILTER_BLOCK : SYSCALL_DISPATCH_FILTER_ALLOW;
	begin = nanoseconds();
	for (long i = 0; i < calls; i++)
		wrong += getppid() != parent;
	took = nanoseconds() - begin;
	selector = SYSCALL_DISPATCH_FILTER_ALLOW;
	if (wrong || trapped - before != (traps ? calls : 0) || !dispatch(false))
		return -1;
	return took;
}

int main(void)
{
	long calls, took, total = 0;
	char line[64], name[16];

	setvbuf(stdout, NULL, _IOLBF, 0);
	pin();
	puts("ready");
	while (fgets(line, sizeof(line), stdin)) {
		if (sscanf(line, "%15s %ld", name, &calls) != 2)
			return 2;
		if (!strcmp(name, "wrapper"))
			took = by_wrapper(calls);
		else if (!strcmp(name, "syscall"))
			took = by_syscall(calls);
		else if (!strcmp(name, "written"))
			took = by_written(calls);
		else
			took = dispatched(calls, !strcmp(name, "trap"));
		total += calls + 1; // one asked before who the parent is
		printf("%ld %ld\n", took, total);
	}
	return 0;
}
