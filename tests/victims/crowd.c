// SPDX-License-Identifier: MIT OR Apache-2.0
// crowd THREADS: as many threads at a time call `work` once each. Says how many did.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

static pthread_barrier_t all;
static unsigned long done;

__attribute__((noinline, noclone)) unsigned long work(unsigned long x)
{
	__asm__ volatile("" : "+r"(x));
	return x + 1;
}

static void *thread(void *unused)
{
	(void)unused;
	pthread_barrier_wait(&all);
	__sync_fetch_and_add(&done, work(0));
	pthread_barrier_wait(&all);
	return NULL;
}

int main(int argc, char **argv)
{
	int count = argc > 1 ? atoi(argv[1]) : 1;
	pthread_t *threads = calloc(count, sizeof(*threads));
	pthread_attr_t small;

	pthread_attr_init(&small);
	pthread_attr_setstacksize(&small, 32768);
	pthread_barrier_init(&all, NULL, count);
	for (int i = 0; i < count; i++)
		if (pthread_create(&threads[i], &small, thread, NULL))
			return 1;
	for (int i = 0; i < count; i++)
		pthread_join(threads[i], NULL);
	printf("%lu\n", done);
	return 0;
}
