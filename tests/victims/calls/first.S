# SPDX-License-Identifier: MIT OR Apache-2.0
# A program without any library whose first instruction is a system call: all registers are 0, so it is read(0, 0, 0).
.section .note.GNU-stack,"",@progbits
.text
.globl _start
_start:
	syscall
	cmp $0, %rax
	je 1f
	cmp $-9, %rax		# (EBADF: there is no standard input)
	jne 2f
1:	mov $1000, %ebx
3:	mov $110, %eax
	syscall
	test %rax, %rax
	js 2f
	dec %ebx
	jnz 3b
	mov $60, %eax
	xor %edi, %edi
	syscall
2:	mov $231, %eax
	mov $1, %edi
	syscall
