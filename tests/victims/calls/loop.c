// SPDX-License-Identifier: MIT OR Apache-2.0
// loop ROUNDS THREADS: makes each call once and says "ready". On a line of input it makes, between two marks, threads that
// make ROUNDS rounds of calls, and waits for their end; then it says "done". On another line it ends. Between the marks
// nothing depends on when a loader looks, so that two may count at the same time.
#include "check.h"
#include "../../programs/calls.h"
#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>

static long rounds;

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

	for (long i = 0; i < rounds; i++)
		once(null);
	close(null);
	return unused;
}

static void work(int threads)
{
	pthread_t handles[64];

	for (int i = 0; i < threads; i++)
		EQUAL(pthread_create(&handles[i], NULL, body, NULL), 0);
	for (int i = 0; i < threads; i++)
		EQUAL(pthread_join(handles[i], NULL), 0);
}

static void await_line(const char *said)
{
	char line[16];

	puts(said);
	fflush(stdout);
	CHECK(fgets(line, sizeof(line), stdin));
}

int main(int argc, char **argv)
{
	int threads = argc > 2 ? atoi(argv[2]) : 4;

	rounds = 2;
	work(2);
	rounds = argc > 1 ? atol(argv[1]) : 1000;
	await_line("ready");
	RAW(MARK, MARK_BEGIN);
	work(threads);
	RAW(MARK, MARK_END);
	await_line("done");
	return faults != 0;
}
