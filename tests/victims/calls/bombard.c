// SPDX-License-Identifier: MIT OR Apache-2.0
// A hundred thousand calls, each result looked at, under a timer's signals. Prints how many signals were handled: each of
// them made one call of getppid, which nothing else makes.
#include "check.h"
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>

static volatile int handled, bad;
static pid_t parent;

static void count(int number, siginfo_t *info, void *context)
{
	sigset_t mask;

	(void)info;
	(void)context;
	handled++;
	bad |= RAW(SYS_getppid) != parent;
	bad |= RAW(SYS_rt_sigprocmask, SIG_BLOCK, NULL, &mask, 8) != 0;
	bad |= !sigismember(&mask, number);
}

int main(int argc, char **argv)
{
	int calls = argc > 1 ? atoi(argv[1]) : 100000, pipes[2];
	struct sigevent event = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGALRM };
	struct sigaction action = { .sa_sigaction = count, .sa_flags = SA_SIGINFO | SA_RESTART };
	struct itimerspec often = { { 0, 50000 }, { 0, 50000 } }, never = { { 0, 0 }, { 0, 0 } };
	int null = open("/dev/null", O_RDWR), zero = open("/dev/zero", O_RDONLY);
	pid_t self = getpid();
	unsigned char bytes[64];
	struct stat stat;
	timer_t timer;
	sigset_t mask;

	parent = getppid();
	EQUAL(pipe(pipes), 0);
	EQUAL(sigaction(SIGALRM, &action, NULL), 0);
	EQUAL(timer_create(CLOCK_MONOTONIC, &event, &timer), 0);
	EQUAL(timer_settime(timer, 0, &often, NULL), 0);
	for (int i = 0; i < calls / 10; i++) {
		EQUAL(RAW(SYS_getpid), self);
		EQUAL(RAW(SYS_write, null, bytes, i % 64), i % 64);
		memset(bytes, 0xff, sizeof(bytes));
		EQUAL(RAW(SYS_read, zero, bytes, i % 64), i % 64);
		for (int at = 0; at < 64; at++)
			EQUAL(bytes[at], at < i % 64 ? 0 : 0xff);
		EQUAL(write(pipes[1], &i, sizeof(i)), sizeof(i));
		int back = 0;
		EQUAL(read(pipes[0], &back, sizeof(back)), sizeof(back));
		EQUAL(back, i);
		EQUAL(RAW(SYS_close, -1), -EBADF);
		int copy = dup(null);
		EQUAL(copy, pipes[1] + 1);
		EQUAL(close(copy), 0);
		EQUAL(fstat(null, &stat), 0);
		CHECK(S_ISCHR(stat.st_mode));
		EQUAL(sigprocmask(SIG_BLOCK, NULL, &mask), 0);
		EQUAL(sigismember(&mask, SIGALRM), 0);
		if (faults)
			break;
	}
	EQUAL(timer_settime(timer, 0, &never, NULL), 0);
	EQUAL(timer_delete(timer), 0);
	EQUAL(bad, 0);
	CHECK(handled > 0);
	printf("%d\n", handled);
	return faults != 0;
}
