// SPDX-License-Identifier: MIT OR Apache-2.0
// Threads that are cancelled at any moment of a loop of cancellation points, thousands of them: none may be missed, and what
// a call has done must be known to who cleans up (glibc before 2.41 does not promise that).
#include "check.h"
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>

static int pipes[2];
static sem_t begun;
static volatile int cleaned;

struct work {
	long how;
	volatile int file;
};

static void clean(void *pointer)
{
	struct work *work = pointer;

	cleaned++;
	if (work->file >= 0)
		close(work->file);
}

static void *body(void *pointer)
{
	struct work *work = pointer;
	char byte;

	pthread_cleanup_push(clean, work);
	sem_post(&begun);
	for (;;)
		switch (work->how) {
		case 0: read(pipes[0], &byte, 1); break;
		case 1: poll(NULL, 0, 0); break;
		case 2: write(-1, &byte, 1); break;
		case 3:
			work->file = open("/dev/null", O_RDONLY | O_CLOEXEC);
			int file = work->file;
			work->file = -1;
			// (Not `close`, which is one itself.)
			RAW(SYS_close, file);
			break;
		}
	pthread_cleanup_pop(0);
	return NULL;
}

static int lowest(void)
{
	int file = dup(0);

	close(file);
	return file;
}

int main(int count, char **words)
{
	int rounds = count > 1 ? atoi(words[1]) : 2000, random = 1;
	void *result;

	EQUAL(pipe(pipes), 0);
	sem_init(&begun, 0, 0);
	int before = lowest();
	for (int round = 0; round < rounds; round++) {
		struct work work = { round % 4, -1 };
		pthread_t thread;

		cleaned = 0;
		EQUAL(pthread_create(&thread, NULL, body, &work), 0);
		while (sem_wait(&begun))
			;
		random = random * 1103515245 + 12345;
		for (volatile int i = random >> 16 & 0xfff; i > 0; i--)
			;
		EQUAL(pthread_cancel(thread), 0);
		EQUAL(pthread_join(thread, &result), 0);
		CHECK(result == PTHREAD_CANCELED);
		EQUAL(cleaned, 1);
	}
#ifndef __GLIBC__
	EQUAL(lowest(), before);
#else
	(void)before;
#endif
	return faults != 0;
}
