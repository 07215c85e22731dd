// SPDX-License-Identifier: MIT OR Apache-2.0
// What the measured programs share. Include it behind _GNU_SOURCE.
#pragma once
#include <sched.h>
#include <time.h>

static inline long nanoseconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000000000l + now.tv_nsec;
}

// On the last CPU that we may use, for good.
static inline void pin(void)
{
	cpu_set_t set, one;

	CPU_ZERO(&one);
	sched_getaffinity(0, sizeof(set), &set);
	for (int cpu = CPU_SETSIZE - 1; cpu >= 0; cpu--)
		if (CPU_ISSET(cpu, &set)) {
			CPU_SET(cpu, &one);
			break;
		}
	sched_setaffinity(0, sizeof(one), &one);
}
