// SPDX-License-Identifier: MIT OR Apache-2.0
// Threads that come to the same new system call at the same time, while others write more code beside it and end.
#include "check.h"
#include <pthread.h>
#include <sys/mman.h>

#define SITES 2000
#define THREADS 4
#define BYTES 32

static unsigned char *code;
static volatile int written;
static pid_t parent;

static void *run(void *unused)
{
	for (int i = 0; i < SITES; i++) {
		while (__atomic_load_n(&written, __ATOMIC_ACQUIRE) <= i)
			__builtin_ia32_pause();
		for (int again = 0; again < 3; again++)
			EQUAL(((long (*)(void))(void *)(code + i * BYTES))(), parent);
	}
	return unused;
}

int main(void)
{
	pthread_t threads[THREADS];

	parent = getppid();
	code = mmap(NULL, SITES * BYTES, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	for (int i = 0; i < THREADS; i++)
		EQUAL(pthread_create(&threads[i], NULL, run, NULL), 0);
	for (int i = 0; i < SITES; i++) {
		memcpy(code + i * BYTES, "\xb8\x6e\x00\x00\x00\x0f\x05\xc3", 8);
		__atomic_store_n(&written, i + 1, __ATOMIC_RELEASE);
	}
	for (int i = 0; i < THREADS; i++)
		EQUAL(pthread_join(threads[i], NULL), 0);
	return faults != 0;
}
