// SPDX-License-Identifier: MIT OR Apache-2.0
// Its first thread ends at once; another says "ready", and ends the process when its input ends.
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

__attribute__((noinline, noclone)) void called(void)
{
	__asm__ volatile("" ::: "memory");
}

static void *run(void *first)
{
	char byte;

	pthread_join(*(pthread_t *)first, NULL);
	if (write(1, "ready\n", 6) != 6)
		exit(1);
	while (read(0, &byte, 1) == 1)
		called();
	exit(0);
}

int main(void)
{
	static pthread_t first, thread;

	first = pthread_self();
	if (pthread_create(&thread, NULL, run, &first))
		return 1;
	pthread_exit(NULL);
}
