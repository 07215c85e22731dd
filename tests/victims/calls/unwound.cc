// SPDX-License-Identifier: MIT OR Apache-2.0
// Threads that are cancelled where they stand: their stacks are unwound from there, and whatever has a destructor is
// destroyed. (glibc before 2.41 cancels all threads so, later ones those that ask for it.)
#include <atomic>
#include <cerrno>
#include <cxxabi.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <cstdio>
#include <cstdlib>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CHECK(holds) \
	do { \
		if (!(holds)) { \
			fprintf(stderr, "line %d: %s (errno %d)\n", __LINE__, #holds, errno); \
			exit(1); \
		} \
	} while (0)

static int pipes[2];
static sem_t begun, never;
static std::atomic<int> destroyed, caught;

struct Guard {
	~Guard() { destroyed++; }
};

static void wait_in(long how)
{
	struct timespec ten = { 10, 0 };
	struct pollfd reader = { pipes[0], POLLIN, 0 };
	char byte;

	switch (how) {
	case 0: (void)!read(pipes[0], &byte, 1); break;
	case 1: nanosleep(&ten, NULL); break;
	case 2: poll(&reader, 1, -1); break;
	case 3: pause(); break;
	case 4: sem_wait(&never); break;
	case 5: for (;;) (void)!write(-1, &byte, 1);
	}
}

__attribute__((noinline)) static void inner(long how)
{
	Guard guard;

	sem_post(&begun);
	wait_in(how);
}

static void *outer(void *how)
{
	Guard guard;

	try {
		inner((long)how);
	} catch (abi::__forced_unwind &) {
		caught++;
		throw;
	}
	return NULL;
}

// Without anything to be destroyed: it can be unwound from each instruction.
__attribute__((noinline)) static void loop(void)
{
	int old;

	pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &old);
	sem_post(&begun);
	for (;;)
		syscall(SYS_getpgid, 0);
}

static void *anywhere(void *)
{
	Guard guard;

	loop();
	return NULL;
}

static void cancel(void *(*body)(void *), long how, int guards, long us)
{
	pthread_t thread;
	void *result;

	destroyed = caught = 0;
	CHECK(!pthread_create(&thread, NULL, body, (void *)how));
	while (sem_wait(&begun))
		;
	if (us)
		usleep(us);
	CHECK(!pthread_cancel(thread));
	CHECK(!pthread_join(thread, &result));
	CHECK(result == PTHREAD_CANCELED);
	CHECK(destroyed == guards);
	CHECK(caught == guards - 1);
}

// More threads than are known at a glance.
static void cancel_many()
{
	static pthread_t threads[300];

	destroyed = caught = 0;
	for (pthread_t &thread : threads)
		CHECK(!pthread_create(&thread, NULL, outer, (void *)0));
	for (unsigned at = 0; at < 300; at++)
		while (sem_wait(&begun))
			;
	usleep(20000);
	for (pthread_t thread : threads)
		CHECK(!pthread_cancel(thread));
	for (pthread_t thread : threads)
		CHECK(!pthread_join(thread, NULL));
	CHECK(destroyed == 600 && caught == 300);
}

static pid_t own_thread;
static std::atomic<bool> over;

// Calls that the signal interrupts again and again, whose handler does nothing: it is not this process's own.
static void *insist(void *)
{
	struct timespec tick = { 0, 1000 };
	char byte;

	own_thread = gettid();
	sem_post(&begun);
	for (int at = 0; !over; at++) {
		CHECK(getpgid(0) == syscall(SYS_getpgid, 0));
		CHECK(read(pipes[0], &byte, 1) == 1);
		CHECK(byte == 'x');
		int error = clock_nanosleep(CLOCK_MONOTONIC, 0, &tick, NULL);
		CHECK(error == 0 || error == EINTR);
	}
	return NULL;
}

static void be_interrupted(int times)
{
	pthread_t thread;
	int status;

	CHECK(!pthread_create(&thread, NULL, insist, NULL));
	while (sem_wait(&begun))
		;
	pid_t child = fork();
	CHECK(child >= 0);
	if (!child) {
		for (int at = 0; at < times; at++) {
			CHECK(!syscall(SYS_tgkill, getppid(), own_thread, 32));
			usleep(at % 20);
		}
		_exit(0);
	}
	while (waitpid(child, &status, WNOHANG) == 0)
		CHECK(write(pipes[1], "x", 1) == 1);
	CHECK(!status);
	over = true;
	CHECK(write(pipes[1], "x", 1) == 1);
	CHECK(!pthread_join(thread, NULL));
}

int main(int count, char **words)
{
	int rounds = count > 1 ? atoi(words[1]) : 1000;

	CHECK(!pipe(pipes));
	CHECK(!sem_init(&begun, 0, 0) && !sem_init(&never, 0, 0));
	for (long how = 0; how <= 4; how++)
		cancel(outer, how, 2, 20000);
	cancel_many();
	for (int at = 0; at < rounds; at++) {
		cancel(outer, 5, 2, at % 50);
		cancel(anywhere, 0, 1, at % 50);
	}
	be_interrupted(5000);
	return 0;
}
