// SPDX-License-Identifier: MIT OR Apache-2.0
// A process that has events at a steady rate.
//
//   events_victim
//
// Prints "ready". For each line "RATE N" of input it calls `victim_event` N times, RATE times a second (0: one call after the other),
// and prints "WALL CPU": how long that took and the thread's CPU time, ns. Between calls that are less than 50 us apart it waits
// without sleeping.
#define _GNU_SOURCE
#include <stdio.h>
#include <sys/prctl.h>
#include <time.h>

#define SPIN_NS 50000

static unsigned long long now(clockid_t clock)
{
	struct timespec time;

	clock_gettime(clock, &time);
	return time.tv_sec * 1000000000ull + time.tv_nsec;
}

__attribute__((noinline, noclone)) void victim_event(unsigned long long when)
{
	__asm__ volatile("" : : "r"(when));
}

static void wait_until(unsigned long long when, int spins)
{
	struct timespec time = {when / 1000000000, when % 1000000000};

	if (!spins)
		clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, NULL);
	while (now(CLOCK_MONOTONIC) < when)
		;
}

int main(void)
{
	unsigned long long rate, calls;
	char line[64];

	setvbuf(stdout, NULL, _IOLBF, 0);
	prctl(PR_SET_TIMERSLACK, 1);
	puts("ready");
	while (fgets(line, sizeof(line), stdin)) {
		if (sscanf(line, "%llu %llu", &rate, &calls) != 2)
			return 2;
		unsigned long long begin = now(CLOCK_MONOTONIC), cpu = now(CLOCK_THREAD_CPUTIME_ID);
		unsigned long long apart = rate ? 1000000000 / rate : 0;

		for (unsigned long long i = 1; i <= calls; i++) {
			if (rate)
				wait_until(begin + i * apart, apart < SPIN_NS);
			victim_event(now(CLOCK_MONOTONIC));
		}
		printf("%llu %llu\n", now(CLOCK_MONOTONIC) - begin, now(CLOCK_THREAD_CPUTIME_ID) - cpu);
	}
	return 0;
}
