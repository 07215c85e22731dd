// SPDX-License-Identifier: MIT OR Apache-2.0
// Two processes with one memory, of which neither is a thread of the other (CLONE_VM). Both call `called` until a SIGTERM, and look at its results.
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile int ended;

__attribute__((noinline, noclone)) long called(long number)
{
	return number > 0 ? called(number - 1) + number : 0;
}

static int call(void *unused)
{
	(void)unused;
	while (!ended)
		if (called(30) != 465)
			return 1;
	return 0;
}

static void end(int signal)
{
	(void)signal;
	ended = 1;
}

int main(void)
{
	enum { STACK = 1 << 20 };
	char *stack = malloc(STACK);
	int child, status;

	signal(SIGTERM, end);
	child = clone(call, stack + STACK, CLONE_VM | SIGCHLD, NULL);
	if (child < 0 || write(1, "ready\n", 6) != 6)
		return 1;
	status = call(NULL);
	if (waitpid(child, &child, 0) < 0)
		return 1;
	return status || child;
}
