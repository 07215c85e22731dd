// SPDX-License-Identifier: MIT OR Apache-2.0
// 4096 functions of one byte, tiny_0 to tiny_4095, one directly behind the other, and one more function that has room. Says "ready";
// when a line of input with a number comes, calls the first tiny one, the last one and the one behind so many times, and prints the
// number.
#include <stdio.h>
#include <stdlib.h>

__asm__(".text\n.p2align 4\n"
	".macro one\n .globl tiny_\\@\n .type tiny_\\@, @function\n tiny_\\@: ret\n .size tiny_\\@, .-tiny_\\@\n.endm\n"
	".rept 4096\n one\n.endr\n.purgem one\n");
extern void tiny_0(void), tiny_4095(void);

__attribute__((noipa)) long behind(long x)
{
	return x * 3 + 1;
}

int main(void)
{
	char line[32];

	puts("ready");
	fflush(stdout);
	while (fgets(line, sizeof(line), stdin)) {
		long times = atol(line), right = 0;

		for (long i = 0; i < times; i++) {
			tiny_0();
			tiny_4095();
			right += behind(i) == i * 3 + 1;
		}
		printf("%ld\n", right);
		fflush(stdout);
	}
	return 0;
}
