// SPDX-License-Identifier: MIT OR Apache-2.0
// Calls by the 32-bit gate, which has numbers of its own (20 is getpid), in between of others.
#include "check.h"

int main(void)
{
	for (int i = 0; i < 100; i++) {
		long result;

		__asm__ volatile("int $0x80" : "=a"(result) : "0"(20l) : "r8", "r9", "r10", "r11", "memory");
		if (result == -ENOSYS) {
			puts("SKIPPED: the kernel has no 32-bit calls");
			return 0;
		}
		EQUAL(result, getpid());
		EQUAL(RAW(SYS_getppid), getppid());
	}
	return faults != 0;
}
