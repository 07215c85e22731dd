// SPDX-License-Identifier: MIT OR Apache-2.0
// A victim whose functions begin in three ways, each of which the kernel probes at a different cost.
//
//   victim [THREADS wait|spin]
//
// Prints "ready". For each line "SHAPE N" of input it calls the function victim_SHAPE N times and prints
// "NANOSECONDS TOTAL": the time of these calls, and how often this function was called since the start.
// Further threads wait or spin until the end of input.
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

// Each returns its argument plus 1. The first instruction is the shape.
#define FUNCTION(name, body)                                                                                          \
	__asm__(".pushsection .text\n.p2align 4\n.globl victim_" name "\n.type victim_" name ", @function\n"          \
		"victim_" name ":\n" body ".size victim_" name ", .-victim_" name "\n.popsection\n")

// (As bytes: the assembler would take the shorter form.)
FUNCTION("nop5", ".byte 0x0f, 0x1f, 0x44, 0, 0\n mov %rdi, %rax\n add $1, %rax\n ret\n");
FUNCTION("push", "push %rbp\n mov %rsp, %rbp\n lea 1(%rdi), %rax\n pop %rbp\n ret\n");
FUNCTION("sub", "sub $0x18, %rsp\n lea 1(%rdi), %rax\n add $0x18, %rsp\n ret\n");

extern long victim_nop5(long), victim_push(long), victim_sub(long);

static struct {
	const char *name;
	long (*function)(long);
	long total;
} shapes[] = { { "nop5", victim_nop5 }, { "push", victim_push }, { "sub", victim_sub } };

static long nanoseconds(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000000000l + now.tv_nsec;
}

// Nanoseconds, or -1 if the function's results are not what they must be.
static long run(long (*function)(long), long calls)
{
	long sum = 0, begin = nanoseconds(), took;

	for (long i = 0; i < calls; i++)
		sum += function(i);
	took = nanoseconds() - begin;
	return sum == calls * (calls + 1) / 2 ? took : -1;
}

// On the last CPU that we may use, for good.
static void pin(void)
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

static void *work(void *spin)
{
	volatile long x = 0;

	while (spin)
		x = victim_push(x);
	pause();
	return NULL;
}

int main(int argc, char **argv)
{
	int threads = argc > 2 ? atoi(argv[1]) : 1;
	char line[64], name[16];
	long calls, took;
	pthread_t handle;

	setvbuf(stdout, NULL, _IOLBF, 0);
	for (int i = 1; i < threads; i++)
		pthread_create(&handle, NULL, work, strcmp(argv[2], "spin") == 0 ? &handle : NULL);
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
