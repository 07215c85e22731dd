// SPDX-License-Identifier: MIT OR Apache-2.0
// Threads that begin together, each on a CPU.
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <pthread.h>
#include <sched.h>

#define THREADS_MAX 64

static struct {
	pthread_barrier_t all;
	long threads, rounds;
	void (*work)(long rounds);
} together;

// The CPU that thread `number` of several keeps to: else the scheduler may let them take turns on one.
static void keep_to_cpu(long number)
{
	cpu_set_t set, one;
	int count, seen = 0;

	CPU_ZERO(&one);
	sched_getaffinity(0, sizeof(set), &set);
	count = CPU_COUNT(&set);
	for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
		if (CPU_ISSET(cpu, &set) && seen++ == number % count)
			CPU_SET(cpu, &one);
	sched_setaffinity(0, sizeof(one), &one);
}

static void *begin_together(void *number)
{
	if (together.threads > 1)
		keep_to_cpu((long)number);
	pthread_barrier_wait(&together.all);
	together.work(together.rounds);
	return NULL;
}

// Has `threads` threads do the work and waits for them; 0 if there are too many.
static int run_together(long threads, long rounds, void (*work)(long rounds))
{
	pthread_t handles[THREADS_MAX];

	if (threads < 1 || threads > THREADS_MAX)
		return 0;
	together.threads = threads;
	together.rounds = rounds;
	together.work = work;
	pthread_barrier_init(&together.all, NULL, threads);
	for (long i = 0; i < threads; i++)
		pthread_create(&handles[i], NULL, begin_together, (void *)i);
	for (long i = 0; i < threads; i++)
		pthread_join(handles[i], NULL);
	pthread_barrier_destroy(&together.all);
	return 1;
}
