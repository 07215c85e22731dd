// SPDX-License-Identifier: MIT OR Apache-2.0
// Threads that are cancelled in calls that block, and ones that may not be. musl looks where the call was interrupted.
#include "check.h"
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>

static int pipes[2], sockets[2];
static sem_t nothing, begun;
static volatile int cleaned;

static void clean(void *unused)
{
	(void)unused;
	cleaned++;
}

static void *block(void *how)
{
	struct timespec ten = { 10, 0 };
	char byte;

	pthread_cleanup_push(clean, NULL);
	sem_post(&begun);
	switch ((long)how) {
	case 0: read(pipes[0], &byte, 1); break;
	case 1: nanosleep(&ten, NULL); break;
	case 2: pause(); break;
	case 3: sem_wait(&nothing); break;
	case 4: poll(&(struct pollfd){ pipes[0], POLLIN, 0 }, 1, -1); break;
	case 5: recv(sockets[0], &byte, 1, 0); break;
	case 6: clock_nanosleep(CLOCK_MONOTONIC, 0, &ten, NULL); break;
	case 7: sigwaitinfo(&(sigset_t){ 0 }, NULL); break;
	case 8: for (;;) pthread_testcancel();
	}
	pthread_cleanup_pop(0);
	return NULL;
}

// Not to be cancelled: it must come to its end, and be cancelled then.
static void *insist(void *unused)
{
	struct timespec moment = { 0, 30000000 };
	int old;

	(void)unused;
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &old);
	sem_post(&begun);
	// (musl's is interrupted, and nothing more.)
	CHECK(nanosleep(&moment, NULL) == 0 || errno == EINTR);
	EQUAL(RAW(SYS_getpid), getpid());
	cleaned++;
	pthread_setcancelstate(old, NULL);
	pthread_testcancel();
	CHECK(!"it is cancelled here");
	return NULL;
}

static void *run(void *unused)
{
	int old;

	(void)unused;
	pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &old);
	sem_post(&begun);
	for (;;)
		RAW(SYS_getpid);
	return NULL;
}

static void cancel(void *(*body)(void *), long how, long pause)
{
	struct timespec moment = { 0, pause };
	pthread_t thread;
	void *result;

	EQUAL(pthread_create(&thread, NULL, body, (void *)how), 0);
	while (sem_wait(&begun))
		;
	if (pause)
		nanosleep(&moment, NULL);
	EQUAL(pthread_cancel(thread), 0);
	EQUAL(pthread_join(thread, &result), 0);
	CHECK(result == PTHREAD_CANCELED);
}

int main(void)
{
	EQUAL(pipe(pipes), 0);
	EQUAL(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets), 0);
	sem_init(&nothing, 0, 0);
	sem_init(&begun, 0, 0);
	for (int round = 0; round < 3; round++)
		for (long how = 0; how <= 8; how++) {
			cleaned = 0;
			// Blocked already; and at any moment on its way there.
			cancel(block, how, 10000000);
			EQUAL(cleaned, 1);
			for (int i = 0; i < 50; i++)
				cancel(block, how, 0);
			EQUAL(cleaned, 51);
		}
	for (int i = 0; i < 5; i++) {
		cleaned = 0;
		cancel(insist, 0, 0);
		EQUAL(cleaned, 1);
	}
	for (int i = 0; i < 100; i++)
		cancel(run, 0, i % 4 * 100000);
	return faults != 0;
}
