// SPDX-License-Identifier: MIT OR Apache-2.0
// Moves the page of a function by mremap, and calls it where it is then. Prints what it returns before and after.
#define _GNU_SOURCE
#include <stdio.h>
#include <sys/mman.h>

enum { PAGE = 4096 };

__attribute__((noinline, noclone, aligned(PAGE), section(".text.moved"))) int moved(int x)
{
	__asm__ volatile("nop\n\tnop\n\tnop\n\tnop\n\tnop" : "+r"(x));
	return x * 3;
}

__attribute__((noinline, noclone, aligned(PAGE), section(".text.moved"))) int behind(int x)
{
	__asm__ volatile("" : "+r"(x));
	return x + 1;
}

// The page of the one before is its own.
__attribute__((noinline, noclone, used, aligned(PAGE), section(".text.moved"))) int last(int x)
{
	return x;
}

int main(void)
{
	char line[8];

	setvbuf(stdout, NULL, _IOLBF, 0);
	puts("ready");
	if (!fgets(line, sizeof(line), stdin))
		return 1;
	printf("%d %d\n", moved(2), behind(2));
	// Memory without code may move as often as it likes, also from where code with a probe was.
	if (munmap((void *)behind, PAGE) ||
	    mmap((void *)behind, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED ||
	    mremap((void *)behind, PAGE, 2 * PAGE, MREMAP_MAYMOVE) == MAP_FAILED)
		return 4;
	char *large = mmap(NULL, 16 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	large = mremap(large, 16 * PAGE, 64 * PAGE, MREMAP_MAYMOVE);
	if (large == MAP_FAILED)
		return 2;
	printf("%d\n", moved(3));
	void *there = mmap(NULL, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	there = mremap((void *)moved, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, there);
	if (there == MAP_FAILED)
		return 3;
	for (int i = 0; i < 3; i++)
		printf("%d\n", ((int (*)(int))there)(i));
	return 7;
}
