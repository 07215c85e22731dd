// SPDX-License-Identifier: MIT OR Apache-2.0
// Calls that the kernel begins anew: after handlers with SA_RESTART, and after a stop.
#include "check.h"
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>

static int pipes[2], word;
static volatile int handled, child;

static void soon(void)
{
	struct itimerval timer = { { 0, 0 }, { 0, 60000 } };

	handled = 0;
	EQUAL(setitimer(ITIMER_REAL, &timer, NULL), 0);
}

static void feed(int number)
{
	(void)number;
	handled++;
	EQUAL(RAW(SYS_write, pipes[1], "x", 1), 1);
}

static void change(int number)
{
	(void)number;
	handled++;
	word = 1;
}

static void end(int number)
{
	(void)number;
	handled++;
	EQUAL(RAW(SYS_kill, child, SIGTERM), 0);
}

static void handle(void (*handler)(int))
{
	struct sigaction action = { .sa_handler = handler, .sa_flags = SA_RESTART };

	EQUAL(sigaction(SIGALRM, &action, NULL), 0);
}

// The same call, all of whose arguments must be there the second time; by libc and at a site of its own.
static void reads_go_on(void)
{
	char byte;

	handle(feed);
	for (int i = 0; i < 4; i++) {
		byte = 0;
		soon();
		EQUAL(i % 2 ? read(pipes[0], &byte, 1) : RAW(SYS_read, pipes[0], &byte, 1), 1);
		EQUAL(byte, 'x');
		EQUAL(handled, 1);
	}
}

static void waits_go_on(void)
{
	int status;

	handle(change);
	word = 0;
	soon();
	// (It is looked at again, and is another.)
	EQUAL(RAW(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 0, NULL), -EAGAIN);
	EQUAL(handled, 1);
	handle(end);
	child = fork();
	if (!child) {
		signal(SIGALRM, SIG_DFL);
		for (;;)
			pause();
	}
	soon();
	EQUAL(waitpid(child, &status, 0), child);
	EQUAL(WTERMSIG(status), SIGTERM);
	EQUAL(handled, 1);
}

static void sleeps_end(void)
{
	struct timespec ten = { 10, 0 };

	// No flag lets these go on.
	handle(change);
	soon();
	EQUAL(nanosleep(&ten, NULL), -1);
	EQUAL(errno, EINTR);
	soon();
	EQUAL(pause(), -1);
	EQUAL(errno, EINTR);
}

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec + time.tv_nsec / 1e9;
}

// A stop in the middle of a sleep: the kernel has a call of its own for what is left (restart_syscall).
static void stops_do_not_disturb(void)
{
	struct timespec sleep = { 0, 300000000 }, moment = { 0, 60000000 };
	int status;

	for (int i = 0; i < 2; i++) {
		pid_t sleeper = fork();
		if (!sleeper) {
			double from = now();
			int bad = i ? RAW(SYS_nanosleep, &sleep, NULL) : nanosleep(&sleep, NULL);
			bad |= now() - from < 0.3;
			bad |= RAW(SYS_getppid) != getppid();
			_exit(bad);
		}
		nanosleep(&moment, NULL);
		EQUAL(kill(sleeper, SIGSTOP), 0);
		EQUAL(waitpid(sleeper, &status, WUNTRACED), sleeper);
		EQUAL(WIFSTOPPED(status), 1);
		nanosleep(&moment, NULL);
		EQUAL(kill(sleeper, SIGCONT), 0);
		EQUAL(waitpid(sleeper, &status, 0), sleeper);
		EQUAL(status, 0);
	}
}

int main(void)
{
	EQUAL(pipe(pipes), 0);
	reads_go_on();
	waits_go_on();
	sleeps_end();
	stops_do_not_disturb();
	return faults != 0;
}
