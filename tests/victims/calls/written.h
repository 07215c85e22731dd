// SPDX-License-Identifier: MIT OR Apache-2.0
// Code that victims write while they run.
#pragma once
#include "check.h"
#include <sys/mman.h>

// call(number, a, b, c, d, e)
static long (*call)(long, ...);
// vfork keeps its return address where the child does not overwrite it.
static pid_t (*written_vfork)(void);
// What a thread begins with: getppid, then exit.
static void *thread_code;
// getpid by the 32-bit gate.
static long (*old_getpid)(void);

static void write_code(void)
{
	static const unsigned char any[] = "\x48\x89\xf8\x48\x89\xf7\x48\x89\xd6\x48\x89\xca\x4d\x89\xc2\x4d\x89\xc8\x0f\x05\xc3";
	static const unsigned char fork[] = "\x5a\xb8\x3a\x00\x00\x00\x0f\x05\x52\xc3";
	static const unsigned char thread[] = "\xb8\x6e\x00\x00\x00\x0f\x05\x31\xff\xb8\x3c\x00\x00\x00\x0f\x05\x0f\x0b";
	static const unsigned char old[] = "\xb8\x14\x00\x00\x00\xcd\x80\xc3";
	unsigned char *at = mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	CHECK(at != MAP_FAILED);
	memcpy(at, any, sizeof(any));
	memcpy(at + 64, fork, sizeof(fork));
	memcpy(at + 128, thread, sizeof(thread));
	memcpy(at + 192, old, sizeof(old));
	call = (long (*)(long, ...))(void *)at;
	written_vfork = (pid_t (*)(void))(void *)(at + 64);
	thread_code = at + 128;
	old_getpid = (long (*)(void))(void *)(at + 192);
}
