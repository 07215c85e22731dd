// SPDX-License-Identifier: MIT OR Apache-2.0
// As a library (-DLIBRARY): 8192 functions, many_00000 to many_17777 in octal digits, and a table of them. As a program: says
// "ready"; when a line of input with a number comes, calls each function so many times and prints the sum of what they return.
#include <stdio.h>
#include <stdlib.h>

#define MANY 8192
#define EACH(F, n) F(n##0) F(n##1) F(n##2) F(n##3) F(n##4) F(n##5) F(n##6) F(n##7)
#define EACH2(F, n) EACH(F, n##0) EACH(F, n##1) EACH(F, n##2) EACH(F, n##3) EACH(F, n##4) EACH(F, n##5) EACH(F, n##6) EACH(F, n##7)
#define EACH3(F, n) \
	EACH2(F, n##0) EACH2(F, n##1) EACH2(F, n##2) EACH2(F, n##3) EACH2(F, n##4) EACH2(F, n##5) EACH2(F, n##6) EACH2(F, n##7)
#define EACH4(F, n) \
	EACH3(F, n##0) EACH3(F, n##1) EACH3(F, n##2) EACH3(F, n##3) EACH3(F, n##4) EACH3(F, n##5) EACH3(F, n##6) EACH3(F, n##7)
#define ALL(F) EACH4(F, 0) EACH4(F, 1)

extern long (*const many[MANY])(long);

#ifdef LIBRARY

#define DEFINE(n) __attribute__((noipa)) long many_##n(long x) { return x * 3 + 0##n; }
#define NAME(n) many_##n,

ALL(DEFINE)
long (*const many[MANY])(long) = { ALL(NAME) };

#else

int main(void)
{
	char line[32];

	puts("ready");
	fflush(stdout);
	while (fgets(line, sizeof(line), stdin)) {
		long times = atol(line), sum = 0;
		for (long i = 0; i < times; i++)
			for (int at = 0; at < MANY; at++)
				sum += many[at](i);
		printf("%ld\n", sum);
		fflush(stdout);
	}
	return 0;
}

#endif
