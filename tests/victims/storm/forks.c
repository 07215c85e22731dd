// SPDX-License-Identifier: MIT OR Apache-2.0
// A bounded fork bomb: trees of 15 processes, each of which forks two, until a line of input comes. Prints how many trees, and how
// many had a process that ended wrongly.
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#define DEPTH 3

__attribute__((noinline, noclone)) unsigned long step(unsigned long x)
{
	__asm__ volatile("" : "+r"(x));
	return x * 3 + 1;
}

// The number of processes of the tree, modulo 256 as exit codes are.
__attribute__((noinline, noclone)) int grow(int depth)
{
	int total = step(1) == 4;

	for (int i = 0; depth > 0 && i < 2; i++) {
		int status;
		pid_t child = fork();
		if (child == 0)
			_exit(grow(depth - 1));
		if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status))
			_exit(255);
		total += WEXITSTATUS(status);
	}
	return total;
}

int main(void)
{
	unsigned long trees = 0, wrong = 0;
	struct pollfd input = { .fd = 0, .events = POLLIN };

	setvbuf(stdout, NULL, _IONBF, 0);
	puts("ready");
	while (poll(&input, 1, 0) == 0) {
		int status;
		pid_t child = fork();
		if (child == 0)
			_exit(grow(DEPTH));
		if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) != 15) {
			fprintf(stderr, "child %d: status %#x\n", (int)child, status);
			wrong++;
		}
		trees++;
	}
	printf("%lu %lu\n", trees, wrong);
	return wrong != 0;
}
