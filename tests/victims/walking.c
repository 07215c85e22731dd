// Walks its stack again and again, from functions at other addresses each time, by the C++ run-time's unwinder. Prints how many walks
// there were, and how many found less than all frames.
#include <alloca.h>
#include <execinfo.h>
#include <stdio.h>

#define SOLID __attribute__((noinline))
#define LEAVES asm volatile("" ::: "memory") // So that the last call of a function is no jump.

enum { FRAMES = 64, SHIFTS = 64, DEPTH = 12 };

static void *frames[FRAMES];
static int walks, short_walks, found;

SOLID void walk(void)
{
	found = backtrace(frames, FRAMES);
	walks++;
	LEAVES;
}

SOLID long deep(int depth)
{
	volatile char room[depth * 24 + 1];

	room[0] = depth;
	if (depth)
		room[0] += deep(depth - 1);
	else
		walk();
	LEAVES;
	return room[0];
}

SOLID void all(int *expected)
{
	for (int depth = 0; depth <= DEPTH; depth += DEPTH) {
		deep(depth);
		int *known = &expected[depth != 0];
		*known = *known ? *known : found;
		short_walks += found < *known;
	}
	LEAVES;
}

SOLID void shifted(int bytes, int *expected)
{
	volatile char *room = alloca(bytes + 16);

	room[0] = 1;
	all(expected);
	room[0] = 2;
}

int main(void)
{
	int expected[2] = { 0, 0 };
	char line[16];

	printf("ready\n");
	fflush(stdout);
	if (!fgets(line, sizeof(line), stdin))
		return 1;
	for (int shift = 0; shift < SHIFTS; shift++)
		shifted(16 * shift, expected);
	printf("%d %d\n", walks, short_walks);
	return 0;
}
