// SPDX-License-Identifier: MIT OR Apache-2.0
// Functions that call, go on to each other, are left by exceptions and longjmp, and a signal handler that does as much at any
// instruction.
//
//   interrupted ROUNDS
//
// Says how often `down` was called below, and how often in the handler.
#include <csetjmp>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <sys/time.h>

static long below, above, faults;
static volatile sig_atomic_t in_handler;

#define PROBED extern "C" __attribute__((noinline, noclone))

PROBED int down(int depth, jmp_buf *out)
{
	(in_handler ? above : below)++;
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

static void round(int number)
{
	jmp_buf out;
	int depth = number % 6;

	faults += down(depth, nullptr) != depth + 1;
	faults += onward(depth, nullptr) != depth + 1;
	if (!setjmp(out)) {
		onward(depth, &out);
		faults++;
	}
	faults += down(1, nullptr) != 2;
}

static void handle(int)
{
	static int number;

	in_handler = 1;
	round(number++);
	in_handler = 0;
}

int main(int, char **words)
{
	struct sigaction action = {};
	itimerval often = { { 0, 50 }, { 0, 50 } }, never = {};
	long rounds = atol(words[1]), caught = 0;

	action.sa_handler = handle;
	sigaction(SIGALRM, &action, nullptr);
	setitimer(ITIMER_REAL, &often, nullptr);
	for (int i = 0; i < rounds; i++) {
		round(i);
		try {
			faults += thrower(i) != i + 1;
		} catch (const std::runtime_error &) {
			caught++;
		}
	}
	setitimer(ITIMER_REAL, &never, nullptr);
	faults += caught != (rounds + 2) / 3;
	printf("%ld %ld\n", below, above);
	return faults != 0;
}
