// SPDX-License-Identifier: MIT OR Apache-2.0
// Makes calls without pause, and others in the handler of a timer. Prints how many of each.
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

#define TICKS 4000

static volatile long ticks;

static void on_tick(int signal)
{
	syscall(SYS_getppid);
	ticks++;
}

int main(void)
{
	struct sigaction action = { .sa_handler = on_tick, .sa_flags = SA_RESTART };
	struct itimerval often = { { 0, 50 }, { 0, 50 } }, never = { { 0, 0 }, { 0, 0 } };
	long calls;

	sigaction(SIGALRM, &action, NULL);
	for (calls = 0; calls < 1000; calls++)
		syscall(SYS_getuid);
	setitimer(ITIMER_REAL, &often, NULL);
	for (; ticks < TICKS; calls++)
		syscall(SYS_getuid);
	setitimer(ITIMER_REAL, &never, NULL);
	printf("%ld %ld\n", calls, ticks);
	return 0;
}
