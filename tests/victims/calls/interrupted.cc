// SPDX-License-Identifier: MIT OR Apache-2.0
// Functions that call, go on to each other, are left by exceptions and longjmp, and handlers of two signals that do as much at
// any instruction, also of each other, and look where they are.
//
//   interrupted ROUNDS
//
// Says how often `down` was called below, and how often in handlers.
#include <csetjmp>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <execinfo.h>
#include <stdexcept>

static long below, above, faults;
static volatile sig_atomic_t handlers, throwing;

#define PROBED extern "C" __attribute__((noinline, noclone))

PROBED int down(int depth, jmp_buf *out)
{
	(handlers ? above : below)++;
	if (depth == 0 && out)
		longjmp(*out, 1);
	int deeper = depth == 0 ? 0 : down(depth - 1, out);
	__asm__ volatile("" : "+r"(deeper));
	return deeper + 1;
}

// Goes on to `down`.
PROBED __attribute__((optimize("optimize-sibling-calls"))) int onward(int depth, jmp_buf *out)
{
	__asm__ volatile("" : "+r"(depth));
	return down(depth, out);
}

PROBED int thrower(int number)
{
	if (number % 3 == 0)
		throw std::runtime_error("thrown");
	__asm__ volatile("" : "+r"(number));
	return number + 1;
}

PROBED int catcher(int number)
{
	try {
		return thrower(number);
	} catch (const std::runtime_error &) {
		return -1;
	}
}

// Calls somebody from where `onward` was left: what it returns to lies where that of `onward` did.
__attribute__((noinline)) static int leave_and_catch(int number)
{
	jmp_buf out;

	if (!setjmp(out))
		onward(0, &out);
	throwing = 1;
	int caught = catcher(3 * number);
	throwing = 0;
	return caught;
}

static void round(int number)
{
	jmp_buf out;
	volatile int depth = number % 6;

	faults += down(depth, nullptr) != depth + 1;
	faults += onward(depth, nullptr) != depth + 1;
	if (!setjmp(out)) {
		onward(depth, &out);
		faults++;
	}
	faults += down(1, nullptr) != 2;
}

static timer_t timers[2];

// (Only now and then: the others go on, too.)
static void soon(int timer)
{
	itimerspec next = { { 0, 0 }, { 0, 70000 } };

	timer_settime(timers[timer], 0, &next, nullptr);
}

static void handle(int signal)
{
	static int number;
	void *callers[32];

	handlers = handlers + 1;
	round(number++);
	// (Nobody can tell where an unwinder is while it goes to who catches.)
	if (signal == SIGALRM && !throwing)
		faults += backtrace(callers, 32) < 3;
	handlers = handlers - 1;
	soon(signal == SIGALRM);
}

static void begin(int signal)
{
	struct sigaction action = {};
	struct sigevent event = {};

	action.sa_handler = handle;
	event.sigev_notify = SIGEV_SIGNAL;
	event.sigev_signo = signal;
	faults += sigaction(signal, &action, nullptr) != 0;
	faults += timer_create(CLOCK_MONOTONIC, &event, &timers[signal == SIGALRM]) != 0;
	soon(signal == SIGALRM);
}

int main(int, char **words)
{
	long rounds = atol(words[1]), caught = 0;
	void *here;

	// (The first time it loads a library.)
	backtrace(&here, 1);
	begin(SIGALRM);
	begin(SIGUSR1);
	for (int i = 0; i < rounds; i++) {
		round(i);
		throwing = 1;
		try {
			faults += thrower(i) != i + 1;
		} catch (const std::runtime_error &) {
			caught++;
		}
		throwing = 0;
		faults += leave_and_catch(i) != -1;
	}
	for (timer_t timer : timers)
		timer_delete(timer);
	faults += caught != (rounds + 2) / 3;
	printf("%ld %ld\n", below, above);
	return faults != 0;
}
