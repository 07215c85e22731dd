// SPDX-License-Identifier: MIT OR Apache-2.0
// A 32-bit program, which needs no library: writes a line and exits with 7.
	.globl _start
_start:
	movl $4, %eax
	movl $1, %ebx
	movl $text, %ecx
	movl $5, %edx
	int $0x80
	movl $1, %eax
	movl $7, %ebx
	int $0x80
	.data
text:	.ascii "gate\n"
