// SPDX-License-Identifier: MIT OR Apache-2.0
// Creates threads, four at a time, and joins them, until a line of input comes. Prints how many, and how many returned a wrong
// value or could not be made.
#include <poll.h>
#include <pthread.h>
#include <stdio.h>

#define AT_ONCE 4

__attribute__((noinline, noclone)) unsigned long step(unsigned long x)
{
	__asm__ volatile("" : "+r"(x));
	return x * 3 + 1;
}

void *body(void *argument)
{
	return (void *)step((unsigned long)argument);
}

int main(void)
{
	unsigned long made = 0, wrong = 0;
	struct pollfd input = { .fd = 0, .events = POLLIN };
	pthread_attr_t small;

	setvbuf(stdout, NULL, _IONBF, 0);
	pthread_attr_init(&small);
	pthread_attr_setstacksize(&small, 64 << 10);
	puts("ready");
	while (made % 64 || poll(&input, 1, 0) == 0) {
		pthread_t threads[AT_ONCE];
		int failed[AT_ONCE];
		for (int i = 0; i < AT_ONCE; i++)
			failed[i] = pthread_create(&threads[i], &small, body, (void *)(made + i));
		for (int i = 0; i < AT_ONCE; i++) {
			void *result = NULL;
			if (failed[i] || pthread_join(threads[i], &result) || result != (void *)((made + i) * 3 + 1))
				wrong++;
		}
		made += AT_ONCE;
	}
	printf("%lu %lu\n", made, wrong);
	return wrong != 0;
}
