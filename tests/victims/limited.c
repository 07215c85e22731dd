// SPDX-License-Identifier: MIT OR Apache-2.0
// Limits its address space, and says what it was and is told, what it can take, and what a shell that it executes says.
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#define MIB (1ul << 20)

static void set(unsigned long soft, unsigned long hard)
{
	struct rlimit limit = { soft, hard };
	int done = setrlimit(RLIMIT_AS, &limit);

	printf("set %lx %lx: %s\n", soft, hard, done ? strerror(errno) : "done");
	if (!getrlimit(RLIMIT_AS, &limit))
		printf("  now %lx %lx\n", (unsigned long)limit.rlim_cur, (unsigned long)limit.rlim_max);
}

static void take(unsigned long bytes)
{
	void *memory = malloc(bytes);

	printf("take %lx: %s\n", bytes, memory ? "done" : "refused");
	free(memory);
}

int main(void)
{
	struct rlimit other = { 100, 100 };

	setvbuf(stdout, NULL, _IOLBF, 0);
	take(700 * MIB);
	set(256 * MIB, RLIM_INFINITY);
	take(200 * MIB);
	take(400 * MIB);
	set(300 * MIB, 400 * MIB);
	take(400 * MIB);
	set(500 * MIB, 400 * MIB);
	set(300 * MIB, 300 * MIB);
	take(250 * MIB);
	errno = 0;
	printf("bad address: %d\n", prlimit(0, RLIMIT_AS, (void *)8, NULL) < 0 ? errno : 0);
	printf("other limit: %d\n", setrlimit(RLIMIT_CORE, &other));
	return system("ulimit -S -v; ulimit -H -v; ulimit -v 200000; ulimit -v; x=$(head -c 1000000 /dev/zero | tr '\\0' x); echo ${#x}") != 0;
}
