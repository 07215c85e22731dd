// SPDX-License-Identifier: MIT OR Apache-2.0
// Preloaded, it lets statsnoop find what it looks for. Debian's asks for the events syscalls:statfs, syscalls:statx and so
// on, which no kernel has, and then attaches to nothing (it means sys_enter_statfs).
#define _GNU_SOURCE
#include <errno.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

int access(const char *path, int mode)
{
	const char *last = strstr(path, "/tracing/events/syscalls/");

	if (last && strncmp(last + 25, "sys_", 4))
		return 0;
	return syscall(SYS_faccessat, -100, path, mode);
}
