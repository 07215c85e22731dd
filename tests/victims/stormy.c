// `stormy hold THREADS`: threads that call `hold` with growing numbers until a line of input comes.
// `stormy count THREADS CALLS`: on a line of input, threads that call `count` so often. Prints how many calls there were.
// `stormy mix THREADS CALLS`: the same with `count` in each second thread, and 1000 times as many of `tick` in the
// others, which give their CPU away at any instruction.
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

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

__attribute__((noinline, noclone)) void tick(void)
{
	__asm__ volatile("" : : : "memory");
}

static __thread timer_t timer;

static void give_way(int unused)
{
	struct itimerspec soon = { { 0, 0 }, { 0, 20000 } };

	(void)unused;
	sched_yield();
	timer_settime(timer, 0, &soon, NULL);
}

static void give_way_often(void)
{
	struct sigevent event = { .sigev_notify = SIGEV_THREAD_ID, .sigev_signo = SIGALRM };

	event._sigev_un._tid = gettid();
	signal(SIGALRM, give_way);
	timer_create(CLOCK_MONOTONIC, &event, &timer);
	give_way(0);
}

static void *body(void *ticks)
{
	unsigned long done = 0;

	if (ticks)
		give_way_often();

	if (calls < 0)
		while (!stop)
			hold(++done);
	else
		while (done < (unsigned long)calls) {
			if (ticks)
				for (int i = 0; i < 1000; i++)
					tick();
			else
				count();
			done++;
		}
	if (ticks)
		timer_delete(timer);
	__sync_fetch_and_add(&total, done);
	return NULL;
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
		pthread_create(&handles[i], NULL, body, (void *)(long)(i % 2 && !strcmp(argv[1], "mix")));
	if (calls < 0 && !fgets(line, sizeof(line), stdin))
		return 1;
	stop = 1;
	for (int i = 0; i < threads; i++)
		pthread_join(handles[i], NULL);
	printf("%lu\n", total);
	return 0;
}
