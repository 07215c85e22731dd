// SPDX-License-Identifier: MIT OR Apache-2.0
// As a library (-DLIBRARY): 4096 functions, many_0000 to many_7777 in octal digits, and a table of them. As a program: says
// "ready"; when a line of input with a number comes, calls each function so many times and prints the sum of what they return.
// It has the library mapped so many times more as its argument says, and once more after the line "map", and calls the functions
// there, too.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MANY 4096
#define EACH(F, n) F(n##0) F(n##1) F(n##2) F(n##3) F(n##4) F(n##5) F(n##6) F(n##7)
#define EACH2(F, n) EACH(F, n##0) EACH(F, n##1) EACH(F, n##2) EACH(F, n##3) EACH(F, n##4) EACH(F, n##5) EACH(F, n##6) EACH(F, n##7)
#define EACH3(F, n) \
	EACH2(F, n##0) EACH2(F, n##1) EACH2(F, n##2) EACH2(F, n##3) EACH2(F, n##4) EACH2(F, n##5) EACH2(F, n##6) EACH2(F, n##7)
#define ALL(F) EACH3(F, 0) EACH3(F, 1) EACH3(F, 2) EACH3(F, 3) EACH3(F, 4) EACH3(F, 5) EACH3(F, 6) EACH3(F, 7)

extern long (*const many[MANY])(long);

#ifdef LIBRARY

#define DEFINE(n) __attribute__((noipa)) long many_##n(long x) { return x * 3 + 0##n; }
#define NAME(n) many_##n,

ALL(DEFINE)
long (*const many[MANY])(long) = { ALL(NAME) };

#else

// How far from the functions their other mappings are.
static long away[16], copies;

static void map_again(void)
{
	Dl_info library;
	char *copy;
	int file;

	if (!dladdr((void *)many[0], &library) || copies == sizeof(away) / sizeof(*away))
		return;
	file = open(library.dli_fname, O_RDONLY);
	copy = mmap(NULL, lseek(file, 0, SEEK_END), PROT_READ | PROT_EXEC, MAP_PRIVATE, file, 0);
	close(file);
	if (copy != MAP_FAILED)
		away[copies++] = copy - (char *)library.dli_fbase;
}

int main(int argc, char **argv)
{
	char line[32];

	for (long more = argc > 1 ? atol(argv[1]) : 0; more > 0; more--)
		map_again();
	puts("ready");
	fflush(stdout);
	while (fgets(line, sizeof(line), stdin)) {
		long times = atol(line), sum = 0;
		if (strcmp(line, "map\n") == 0)
			map_again();
		for (long i = 0; i < times; i++)
			for (int at = 0; at < MANY; at++) {
				sum += many[at](i);
				for (int copy = 0; copy < copies; copy++)
					sum += ((long (*)(long))((char *)many[at] + away[copy]))(i);
			}
		printf("%ld\n", sum);
		fflush(stdout);
	}
	return 0;
}

#endif
