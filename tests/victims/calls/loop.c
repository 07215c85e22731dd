// SPDX-License-Identifier: MIT OR Apache-2.0
// loop CALLS [THREADS]: says "ready"; on a line of input THREADS threads make CALLS rounds of calls between two marks (for
// loaders that count at the same time), each once before; on another line it ends.
#include "check.h"
#include "../../programs/calls.h"
#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>

static long rounds;
static pthread_barrier_t warm, begun, ended;

static void once(int null)
{
	struct stat stat;

	EQUAL(RAW(SYS_getppid), getppid());
	EQUAL(write(null, "x", 1), 1);
	EQUAL(RAW(SYS_close, -1), -EBADF);
	int file = open("/dev/zero", O_RDONLY);
	CHECK(file >= 0);
	EQUAL(fstat(file, &stat), 0);
	EQUAL(close(file), 0);
	EQUAL(open("/nowhere/missing", O_RDONLY), -1);
	EQUAL(RAW(600), -ENOSYS);
	EQUAL(kill(getpid(), 0), 0);
}

static void *body(void *unused)
{
	int null = open("/dev/null", O_WRONLY);

	once(null);
	pthread_barrier_wait(&warm);
	pthread_barrier_wait(&begun);
	for (long i = 0; i < rounds; i++)
		once(null);
	pthread_barrier_wait(&ended);
	return unused;
}

int main(int argc, char **argv)
{
	int threads = argc > 2 ? atoi(argv[2]) : 4;
	pthread_t thread;
	char line[16];

	rounds = argc > 1 ? atol(argv[1]) : 1000;
	pthread_barrier_init(&warm, NULL, threads + 1);
	pthread_barrier_init(&begun, NULL, threads + 1);
	pthread_barrier_init(&ended, NULL, threads + 1);
	for (int i = 0; i < threads; i++)
		EQUAL(pthread_create(&thread, NULL, body, NULL), 0);
	pthread_barrier_wait(&warm);
	puts("ready");
	fflush(stdout);
	CHECK(fgets(line, sizeof(line), stdin));
	RAW(MARK, MARK_BEGIN);
	pthread_barrier_wait(&begun);
	pthread_barrier_wait(&ended);
	RAW(MARK, MARK_END);
	puts("done");
	fflush(stdout);
	CHECK(fgets(line, sizeof(line), stdin));
	return faults != 0;
}
