// SPDX-License-Identifier: MIT OR Apache-2.0
// A victim: THREADS threads call malloc CALLS times each, when a line of input comes. Prints the total.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

static long calls;

static void *work(void *unused)
{
	void *volatile block; // or the compiler removes the pair

	for (long i = 0; i < calls; i++) {
		block = malloc(16 + i % 64);
		free(block);
	}
	return unused;
}

int main(int argc, char **argv)
{
	int threads = argc > 1 ? atoi(argv[1]) : 8;
	pthread_t *handles = calloc(threads, sizeof(*handles));
	char line[16];

	calls = argc > 2 ? atol(argv[2]) : 1000;
	setvbuf(stdout, NULL, _IONBF, 0);
	setvbuf(stdin, NULL, _IONBF, 0);
	puts("ready");
	if (!fgets(line, sizeof(line), stdin))
		return 1;
	for (int i = 0; i < threads; i++)
		pthread_create(&handles[i], NULL, work, NULL);
	for (int i = 0; i < threads; i++)
		pthread_join(handles[i], NULL);
	printf("%ld\n", threads * calls);
	if (!fgets(line, sizeof(line), stdin))
		return 0;
	return 0;
}
