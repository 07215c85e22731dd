// SPDX-License-Identifier: MIT OR Apache-2.0
// A process whose threads call a function that may be probed.
//
// Prints "ready". For each line "run THREADS CALLS" of input it makes THREADS threads that each call maps_victim_call
// CALLS times and prints "done".
#include "threads.h"
#include "text.h"
#include <stdio.h>

__attribute__((noinline)) void maps_victim_call(void)
{
	__asm__ volatile("nopl 0(%%rax,%%rax)" ::: "memory");
}

static void work(long calls)
{
	for (long i = 0; i < calls; i++)
		maps_victim_call();
}

int main(void)
{
	char line[64];
	long threads, calls;

	setvbuf(stdout, NULL, _IOLBF, 0);
	if (make_text())
		return 1;
	puts("ready");
	while (fgets(line, sizeof(line), stdin)) {
		if (sscanf(line, "run %ld %ld", &threads, &calls) != 2 || !run_together(threads, calls, work))
			return 2;
		puts("done");
	}
	return 0;
}
