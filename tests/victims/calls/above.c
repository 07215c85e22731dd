// SPDX-License-Identifier: MIT OR Apache-2.0
// A thread whose signal handler runs on a stack that lies above its own, and makes calls there, at any instruction. It says how
// often the handler ran.
//
//   above CALLS
#include "check.h"

#include <pthread.h>
#include <sys/mman.h>
#include <time.h>

#define STACK_BYTES 0x10000

static char *memory;
static long calls, handled;
static __thread timer_t timer;

// A function whose calls are probed.
__attribute__((noinline, noclone)) long worked(long number)
{
	__asm__ volatile("" : "+r"(number) : : "memory");
	return number + 1;
}

// What the handler calls.
__attribute__((noinline, noclone)) long woke(long number)
{
	__asm__ volatile("" : "+r"(number) : : "memory");
	return number + 2;
}

static void soon(void)
{
	struct itimerspec next = { { 0, 0 }, { 0, 30000 } };

	EQUAL(timer_settime(timer, 0, &next, NULL), 0);
}

static void handle(int signal)
{
	char *here = (char *)&signal;

	CHECK(here > memory + STACK_BYTES && here < memory + 2 * STACK_BYTES);
	EQUAL(syscall(SYS_gettid), gettid());
	EQUAL(woke(handled), handled + 2);
	handled++;
	soon();
}

static void *work(void *unused)
{
	stack_t above = { .ss_sp = memory + STACK_BYTES, .ss_size = STACK_BYTES };
	struct sigevent event = { .sigev_notify = SIGEV_THREAD_ID, .sigev_signo = SIGALRM };

	EQUAL(sigaltstack(&above, NULL), 0);
	event._sigev_un._tid = gettid();
	EQUAL(timer_create(CLOCK_MONOTONIC, &event, &timer), 0);
	soon();
	for (long i = 0; i < calls; i++) {
		EQUAL(worked(i), i + 1);
		if (i % 16 == 0)
			EQUAL(getppid(), getppid());
	}
	EQUAL(timer_delete(timer), 0);
	return unused;
}

int main(int argc, char **argv)
{
	struct sigaction action = { .sa_handler = handle, .sa_flags = SA_ONSTACK | SA_RESTART };
	pthread_attr_t attributes;
	pthread_t thread;

	calls = argc > 1 ? atol(argv[1]) : 0;
	memory = mmap(NULL, 2 * STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(memory != MAP_FAILED);
	EQUAL(sigaction(SIGALRM, &action, NULL), 0);
	EQUAL(pthread_attr_init(&attributes), 0);
	EQUAL(pthread_attr_setstack(&attributes, memory, STACK_BYTES), 0);
	EQUAL(pthread_create(&thread, &attributes, work, NULL), 0);
	EQUAL(pthread_join(thread, NULL), 0);
	CHECK(handled > 0);
	printf("%ld\n", handled);
	return faults != 0;
}
