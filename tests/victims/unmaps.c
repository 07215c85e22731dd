// SPDX-License-Identifier: MIT OR Apache-2.0
// Calls `mark` and `unmap`, which begins as the C library's `munmap` does, so often as the argument says, once it has read a line;
// 0: until another thread has read a line `end` by `take`, which begins in the same way.
// The exit code is 0, or 1 if an address could not be unmapped.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

long unmap(void *address, unsigned long bytes);
// munmap(2) has number 11.
__asm__(".globl unmap\n.type unmap, @function\nunmap:\nmovl $11, %eax\nsyscall\ncmpq $-4095, %rax\njae 1f\nret\n1: movq $-1, %rax\nret\n"
	".size unmap, . - unmap\n");

long take(int fd, void *to, unsigned long bytes);
// read(2) has number 0.
__asm__(".globl take\n.type take, @function\ntake:\nmovl $0, %eax\nsyscall\ncmpq $-4095, %rax\njae 1f\nret\n1: movq $-1, %rax\nret\n"
	".size take, . - take\n");

static volatile int over;

static void *taker(void *unused)
{
	char line[8];

	// (The end of the first line may come by itself.)
	while (take(0, line, sizeof(line)) > 0 && line[0] != 'e')
		;
	over = 1;
	return unused;
}

__attribute__((noinline, noclone)) void mark(void)
{
	__asm__ volatile("" ::: "memory");
}

int main(int count, char **arguments)
{
	int times = count > 1 ? atoi(arguments[1]) : 1, endless = times == 0;
	pthread_t thread;

	puts("ready");
	fflush(stdout);
	getchar();
	if (endless && pthread_create(&thread, 0, taker, 0) != 0)
		return 1;
	for (int i = 0; endless ? !over : i < times; i++) {
		void *page = mmap(0, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

		mark();
		if (page == MAP_FAILED || unmap(page, 4096) != 0)
			return 1;
	}
	printf("%d\n", times);
	return 0;
}
