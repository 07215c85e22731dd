// SPDX-License-Identifier: MIT OR Apache-2.0
// A library with system calls of its own, some of them while it is loaded and unloaded.
#include "check.h"

int constructed;

__attribute__((constructor)) static void construct(void)
{
	constructed = RAW(SYS_getpid);
}

__attribute__((destructor)) static void destruct(void)
{
	constructed = RAW(SYS_getsid, 0);
}

long call_in_library(void)
{
	return RAW(SYS_getppid);
}
