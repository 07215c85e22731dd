// SPDX-License-Identifier: MIT OR Apache-2.0
// Makes system calls that a trace can be compared with: opens files that do not exist, which are numbered from 0, as many as
// the argument says; without it, until it is killed, and says "ready" after the first thousand.
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
	long count = argc > 1 ? atol(argv[1]) : -1;
	char path[64];

	for (long at = 0; at != count; at++) {
		snprintf(path, sizeof(path), "/nonexistent/%ld", at);
		open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0640);
		if (count < 0 && at == 1000) {
			puts("ready");
			fflush(stdout);
		}
	}
	return 7;
}
