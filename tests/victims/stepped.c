// SPDX-License-Identifier: MIT OR Apache-2.0
// On each line of input with a number, calls every function once with it.
#include <stdio.h>

static volatile int sum;

#define STEP(name)                                                \
	__attribute__((noinline, noclone)) int name(int number)   \
	{                                                         \
		sum += number;                                    \
		return sum;                                       \
	}

STEP(tails)
STEP(repeated)
STEP(asked)
STEP(inner)
STEP(named)
STEP(looped)
STEP(walks)
STEP(stale)
STEP(dynptrs)
STEP(storage)
STEP(unstorage)
STEP(drains)

int main(void)
{
	int number;

	printf("ready\n");
	fflush(stdout);
	while (scanf("%d", &number) == 1) {
		printf("%d\n", tails(number) + repeated(number) + asked(number) + inner(number) + named(number) +
				       looped(number) + walks(number) + stale(number) + dynptrs(number) + drains(number) + (number % 2 ? storage(number) : unstorage(number)));
		fflush(stdout);
	}
	return 0;
}
