// SPDX-License-Identifier: MIT OR Apache-2.0
// Does what a line of input says, and answers when it has: what is exported of it is known to the last call.
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

__attribute__((noipa)) int work(unsigned kind, unsigned long size, const char *name)
{
	__asm__ volatile("" : : "r"(name), "r"(size) : "memory");
	return kind;
}

int main(void)
{
	char line[256], name[64];
	unsigned long size, times;
	unsigned kind;

	setvbuf(stdout, NULL, _IOLBF, 0);
	puts("ready");
	while (fgets(line, sizeof(line), stdin)) {
		if (sscanf(line, "work %u %lu %63s %lu", &kind, &size, name, &times) == 4) {
			for (unsigned long i = 0; i < times; i++)
				work(kind, size, name);
		} else if (sscanf(line, "calls %lu", &times) == 1) {
			for (unsigned long i = 0; i < times; i++) {
				syscall(SYS_getppid);
				syscall(SYS_close, -1);
			}
		}
		puts("done");
	}
	return 0;
}
