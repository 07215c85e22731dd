// SPDX-License-Identifier: MIT OR Apache-2.0
// What the vDSO answers by itself, and what it asks the kernel for.
#include "check.h"
#include <sched.h>
#include <sys/time.h>
#include <time.h>

int main(void)
{
	struct timespec time, last = { 0 }, resolution;
	struct timeval day;

	for (int i = 0; i < 1000; i++) {
		EQUAL(clock_gettime(CLOCK_MONOTONIC, &time), 0);
		CHECK(time.tv_sec > last.tv_sec || (time.tv_sec == last.tv_sec && time.tv_nsec >= last.tv_nsec));
		last = time;
		EQUAL(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time), 0);
		EQUAL(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time), 0);
		errno = 0;
		EQUAL(clock_gettime(4711, &time), -1);
		EQUAL(errno, EINVAL);
		EQUAL(clock_getres(CLOCK_PROCESS_CPUTIME_ID, &resolution), 0);
		EQUAL(gettimeofday(&day, NULL), 0);
		CHECK(sched_getcpu() >= 0);
		// The calls themselves, which the vDSO does not know of.
		EQUAL(RAW(SYS_clock_gettime, CLOCK_MONOTONIC, &time), 0);
		EQUAL(RAW(SYS_getcpu, NULL, NULL, NULL), 0);
	}
	return faults != 0;
}
