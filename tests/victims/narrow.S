# A 32-bit program that waits for ever: says "ready", then pauses.
.globl _start
_start:
	mov $4, %eax
	mov $1, %ebx
	mov $text, %ecx
	mov $6, %edx
	int $0x80
again:
	mov $29, %eax
	int $0x80
	jmp again
.section .rodata
text:	.ascii "ready\n"
.section .note.GNU-stack,"",@progbits
