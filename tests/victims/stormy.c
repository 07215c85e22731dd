// `stormy hold THREADS`: threads that call `hold` with growing numbers until a line of input comes.
// `stormy count THREADS CALLS`: on a line of input, threads that call `count` so often. Prints how many calls there were.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static volatile int stop;
static long calls = -1;
static unsigned long total;

__attribute__((noinline, noclone)) void hold(unsigned long number)
{
	__asm__ volatile("" : : "r"(number) : "memory");
}

__attribute__((noinline, noclone)) void count(void)
{
	__asm__ volatile("" : : : "memory");
}

static void *body(void *unused)
{
	unsigned long done = 0;

	if (calls < 0)
		while (!stop)
			hold(++done);
	else
		while (done < (unsigned long)calls) {
			count();
			done++;
		}
	__sync_fetch_and_add(&total, done);
	return unused;
}

int main(int argc, char **argv)
{
	int threads = argc > 2 ? atoi(argv[2]) : 1;
	pthread_t *handles = calloc(threads, sizeof(*handles));
	char line[16];

	setvbuf(stdout, NULL, _IONBF, 0);
	setvbuf(stdin, NULL, _IONBF, 0);
	if (argc > 3)
		calls = atol(argv[3]);
	puts("ready");
	if (calls >= 0 && !fgets(line, sizeof(line), stdin))
		return 1;
	for (int i = 0; i < threads; i++)
		pthread_create(&handles[i], NULL, body, NULL);
	if (calls < 0 && !fgets(line, sizeof(line), stdin))
		return 1;
	stop = 1;
	for (int i = 0; i < threads; i++)
		pthread_join(handles[i], NULL);
	printf("%lu\n", total);
	return 0;
}
