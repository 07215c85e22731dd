// SPDX-License-Identifier: MIT OR Apache-2.0
// What victims that make system calls share: a victim ends with 0 only if every result was right, and is silent then.
#pragma once
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static int faults __attribute__((unused));

#define CHECK(condition)                                                                       \
	do {                                                                                   \
		if (!(condition)) {                                                            \
			dprintf(2, "%s:%d: not so: %s (errno %d)\n", __FILE__, __LINE__, #condition, errno); \
			__atomic_fetch_add(&faults, 1, __ATOMIC_RELAXED);                      \
		}                                                                              \
	} while (0)

#define EQUAL(left, right)                                                                     \
	do {                                                                                   \
		long left_ = (long)(left), right_ = (long)(right);                             \
		if (left_ != right_) {                                                         \
			dprintf(2, "%s:%d: %s is %ld (%#lx), not %ld (%#lx)\n", __FILE__, __LINE__, #left, left_, left_, \
				right_, right_);                                               \
			__atomic_fetch_add(&faults, 1, __ATOMIC_RELAXED);                      \
		}                                                                              \
	} while (0)

// A call at a site of its own wherever this is used; the kernel's result.
static inline __attribute__((always_inline)) long raw6(long number, long a, long b, long c, long d, long e, long f)
{
	register long r10 __asm__("r10") = d;
	register long r8 __asm__("r8") = e;
	register long r9 __asm__("r9") = f;
	long result;

	__asm__ volatile("syscall"
			 : "=a"(result)
			 : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
			 : "rcx", "r11", "memory");
	return result;
}

#define RAW(number, ...) RAW_(number, ##__VA_ARGS__, 0, 0, 0, 0, 0, 0)
#define RAW_(number, a, b, c, d, e, f, ...) \
	raw6(number, (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), (long)(f))
