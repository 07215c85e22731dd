// THREADS threads that call `work` until a line of input comes; prints how often they did, and whether all was right.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

static volatile int stop, bad;
static unsigned long total;

__attribute__((noinline, noclone)) unsigned long work(unsigned long x)
{
	__asm__ volatile("" : "+r"(x));
	return x * 6364136223846793005ul + 1442695040888963407ul;
}

static void *body(void *unused)
{
	unsigned long calls = 0, x = 1;

	while (!stop) {
		unsigned long y = work(x);
		if (y != x * 6364136223846793005ul + 1442695040888963407ul)
			bad = 1;
		x = y;
		calls++;
	}
	__sync_fetch_and_add(&total, calls);
	return unused;
}

int main(int argc, char **argv)
{
	int threads = argc > 1 ? atoi(argv[1]) : 8;
	pthread_t *handles = calloc(threads, sizeof(*handles));
	char line[16];

	setvbuf(stdout, NULL, _IONBF, 0);
	setvbuf(stdin, NULL, _IONBF, 0);
	for (int i = 0; i < threads; i++)
		pthread_create(&handles[i], NULL, body, NULL);
	puts("ready");
	if (!fgets(line, sizeof(line), stdin))
		return 1;
	stop = 1;
	for (int i = 0; i < threads; i++)
		pthread_join(handles[i], NULL);
	printf("%lu %d\n", total, bad);
	return bad;
}
