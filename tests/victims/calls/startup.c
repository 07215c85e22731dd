// SPDX-License-Identifier: MIT OR Apache-2.0
// Calls before and after main: by resolvers, constructors, destructors and handlers of the end.
#include "check.h"

static int steps;

static long given(void)
{
	return 42;
}

// Run by the dynamic loader, or by a static program's first steps, before anything is set up.
static long (*resolve(void))(void)
{
	return raw6(SYS_getppid, 0, 0, 0, 0, 0, 0) > 0 ? given : 0;
}

long resolved(void) __attribute__((ifunc("resolve")));

static void before(int count, char **arguments)
{
	(void)count;
	(void)arguments;
	steps += RAW(SYS_getppid) > 0;
}

__attribute__((section(".preinit_array"), used)) static void (*const first)(int, char **) = before;

__attribute__((constructor(101))) static void construct(void)
{
	steps += RAW(SYS_getppid) > 0;
}

__attribute__((constructor)) static void construct_late(void)
{
	steps += RAW(SYS_getppid) > 0;
}

__attribute__((destructor)) static void destruct(void)
{
	if (RAW(SYS_getppid) <= 0)
		_exit(9);
}

static void at_end(void)
{
	if (RAW(SYS_getppid) <= 0)
		_exit(8);
}

int main(void)
{
	EQUAL(steps, 3);
	EQUAL(resolved(), 42);
	EQUAL(atexit(at_end), 0);
	return faults != 0;
}
