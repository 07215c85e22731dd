// SPDX-License-Identifier: MIT OR Apache-2.0
// Calls `wanted` 1000 times and ends. With a program: waits for a line of input, runs that program and says which process it is.
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

__attribute__((noinline)) int wanted(int x) { __asm__ volatile("" : "+r"(x)); return x + 1; }

int main(int argc, char **argv)
{
	int sum = 0;

	if (argc > 1) {
		pid_t child;

		puts("ready");
		fflush(stdout);
		getchar();
		child = fork();
		if (child == 0) {
			wanted(0);
			execv(argv[1], argv + 1);
			_exit(1);
		}
		printf("%d\n", child);
		fflush(stdout);
		waitpid(child, NULL, 0);
		return 0;
	}
	for (int i = 0; i < 1000; i++)
		sum += wanted(i);
	printf("%d\n", sum);
	return 0;
}
