// SPDX-License-Identifier: MIT OR Apache-2.0
// Threads, as many as the argument says, call a function whose instructions are nearer to each other than a jump is long. Says
// "ready"; for each line of input, a number, the first thread calls it so many times and prints how many calls of all threads were
// wrong so far.
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

// At 0, 3, 6, 10, 11, 12, 18 and 19. The result is 3 * x + 7, and no flags or registers of the caller change but rax.
__asm__(".text; .balign 64; .globl close_by; .type close_by, @function\n"
	"close_by: .byte 0x48, 0x89, 0xf8\n" // mov rax, rdi
	".byte 0x48, 0x01, 0xf8\n" // add rax, rdi
	".byte 0x48, 0x83, 0xc0, 0x07\n" // add rax, 7
	".byte 0x57\n" // push rdi
	".byte 0x5a\n" // pop rdx
	".byte 0x66, 0x0f, 0x1f, 0x44, 0x00, 0x00\n" // nop
	".byte 0x90\n" // nop
	".byte 0x48, 0x01, 0xd0\n" // add rax, rdx
	"ret; .size close_by, . - close_by; .balign 64");
long close_by(long x);

static atomic_long wrong;

static void call(long x)
{
	if (close_by(x) != 3 * x + 7)
		atomic_fetch_add(&wrong, 1);
}

static void *work(void *unused)
{
	for (long x = 0;; x++)
		call(x);
	return unused;
}

int main(int argc, char **argv)
{
	pthread_t thread;
	char line[32];

	for (int i = argc > 1 ? atoi(argv[1]) : 0; i > 0; i--)
		pthread_create(&thread, NULL, work, NULL);
	puts("ready");
	fflush(stdout);
	while (fgets(line, sizeof(line), stdin)) {
		for (long i = atol(line); i > 0; i--)
			call(i);
		printf("%ld\n", wrong);
		fflush(stdout);
	}
	return 0;
}
