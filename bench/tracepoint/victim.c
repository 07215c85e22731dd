// SPDX-License-Identifier: MIT OR Apache-2.0
// A function that reports an event with three fields, and the same function without: with -DLTTNG by lttng_ust_tracepoint(), else by
// RING3_TRACE.
//
// Prints "ready". For each line "SHAPE N" of input it calls the function N times and prints "NANOSECONDS TOTAL": the time of these calls,
// and how often this function was called since the start.
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>

#include "../measured.h"

#ifdef LTTNG
#include "lttng_probes.h"
#define TRACE(id, number, name) lttng_ust_tracepoint(bench, event, id, number, name)
#else
#include <ring3/trace.h>
#define TRACE(id, number, name) RING3_TRACE(bench, event, id, number, name)
#endif

__attribute__((noipa)) static long traced(int id, unsigned long number, const char *name)
{
	TRACE(id, number, name);
	return id + 1;
}

__attribute__((noipa)) static long bare(int id, unsigned long number, const char *name)
{
	return id + 1;
}

static struct {
	const char *name;
	long (*function)(int, unsigned long, const char *);
	long total;
} shapes[] = { { "traced", traced, 0 }, { "bare", bare, 0 } };

// Nanoseconds, or -1 if the function's results are not what they must be.
static long run(long (*function)(int, unsigned long, const char *), long calls)
{
	static const char *const names[] = { "Ada", "Grace", "Barbara", "Frances" };
	long sum = 0, begin = nanoseconds(), took;

	for (long i = 0; i < calls; i++)
		sum += function((int)i, (unsigned long)i << 20, names[i % 4]);
	took = nanoseconds() - begin;
	return sum == calls * (calls + 1) / 2 ? took : -1;
}

int main(void)
{
	char line[64], name[16];
	long calls, took;

	setvbuf(stdout, NULL, _IOLBF, 0);
	pin();
	puts("ready");
	while (fgets(line, sizeof(line), stdin)) {
		if (sscanf(line, "%15s %ld", name, &calls) != 2)
			return 2;
		for (unsigned i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
			if (strcmp(shapes[i].name, name) != 0)
				continue;
			took = run(shapes[i].function, calls);
			shapes[i].total += calls;
			printf("%ld %ld\n", took, shapes[i].total);
		}
	}
	return 0;
}
