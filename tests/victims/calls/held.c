// SPDX-License-Identifier: MIT OR Apache-2.0
// A fork that nobody can stop while its own `vfork` child waits to be told to go on. After that it makes calls until it is told
// to end.
#include "check.h"
#include <poll.h>
#include <sys/wait.h>

static void held(void)
{
	static char letter;
	int status = -1;
	struct pollfd input = { .fd = 0, .events = POLLIN };
	pid_t child = vfork();
	long ready;

	if (!child) {
		RAW(SYS_write, 1, "held\n", 5);
		while (RAW(SYS_read, 0, &letter, 1) == 1 && letter != '\n')
			;
		_exit(letter != '\n');
	}
	CHECK(child > 0);
	while ((ready = RAW(SYS_poll, &input, 1, 0)) == 0)
		CHECK(RAW(SYS_getppid) > 0);
	EQUAL(ready, 1);
	EQUAL(waitpid(child, &status, 0), child);
	EQUAL(status, 0);
}

int main(void)
{
	int status = -1;
	pid_t child = fork();

	if (!child) {
		CHECK(RAW(SYS_getppid) > 0);
		held();
		_exit(faults ? 1 : 7);
	}
	EQUAL(waitpid(child, &status, 0), child);
	EQUAL(status, 7 << 8);
	return faults != 0;
}
