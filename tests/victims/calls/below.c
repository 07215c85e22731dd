// SPDX-License-Identifier: MIT OR Apache-2.0
// A signal handler on a stack that lies below the thread's own, with nothing mapped between them. It says where nothing is, and on
// a line of input lets the handler run so often.
//
//   below TIMES
#include "check.h"

#include <sys/mman.h>

#define STACK_BYTES 0x10000

static volatile long handled;
static char *memory;

static void handle(int signal)
{
	char *here = (char *)&signal;

	CHECK(here >= memory && here < memory + STACK_BYTES);
	handled++;
}

int main(int argc, char **argv)
{
	long times = argc > 1 ? atol(argv[1]) : 0;
	char line[8];

	memory = mmap(NULL, 2 * STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(memory != MAP_FAILED && memory < line);
	// Pages without rights, so that nobody else is given the place.
	EQUAL(mprotect(memory + STACK_BYTES, STACK_BYTES, PROT_NONE), 0);
	stack_t below = { .ss_sp = memory, .ss_size = STACK_BYTES };
	struct sigaction action = { .sa_handler = handle, .sa_flags = SA_ONSTACK };

	EQUAL(sigaltstack(&below, NULL), 0);
	EQUAL(sigaction(SIGUSR1, &action, NULL), 0);
	setvbuf(stdout, NULL, _IOLBF, 0);
	printf("%p\n", (void *)(memory + STACK_BYTES + 0x800));
	CHECK(fgets(line, sizeof(line), stdin));
	for (long i = 0; i < times; i++)
		EQUAL(raise(SIGUSR1), 0);
	EQUAL(handled, times);
	return faults != 0;
}
