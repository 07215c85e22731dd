// SPDX-License-Identifier: MIT OR Apache-2.0
// System calls by `int $0x80`, the gate of 32-bit programs. "linked": in its own code. "written": in code that it writes while it runs.
#define _GNU_SOURCE
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define WRITE 4
#define GETPID 20

static long gate(long number, long first, long second, long third)
{
	long result;

	__asm__ volatile("int $0x80"
			 : "=a"(result)
			 : "a"(number), "b"(first), "c"(second), "d"(third)
			 : "memory", "r8", "r9", "r10", "r11");
	return result;
}

// mov eax, 20; int 0x80; ret
static const unsigned char CODE[] = { 0xb8, GETPID, 0, 0, 0, 0xcd, 0x80, 0xc3 };

#ifndef WITHOUT_GATE
static void linked(void)
{
	char *low = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);

	strcpy(low, "gate\n");
	gate(WRITE, 1, (long)(uintptr_t)low, 5);
}
#else
static void linked(void)
{
}
#endif

static int written(void)
{
	void *code = mmap(0, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int wrong = 0;

	memcpy(code, CODE, sizeof CODE);
	for (int i = 0; i < 3; i++)
		wrong += ((long (*)(void))code)() != getpid();
	return wrong;
}

int main(int count, char **arguments)
{
	int wrong = 0;

	write(1, "first\n", 6);
	if (count > 1 && !strcmp(arguments[1], "written"))
		wrong = written();
	else
		linked();
	write(1, "last\n", 5);
	return wrong;
}
