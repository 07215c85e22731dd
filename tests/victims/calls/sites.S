# SPDX-License-Identifier: MIT OR Apache-2.0
# Sites in awkward places, and `pass`, which goes through one with every register known. A site is entered by a jump
# and ends with a jump to `back`; whatever it makes of rax only, it may.

.section .note.GNU-stack,"",@progbits
.data
.balign 64
# As in sites.c: rax rbx rcx rdx rsi rdi rbp r8-r15 rsp flags mxcsr x87, and vectors from 256.
before:	.quad 0
after:	.quad 0
kept:	.quad 0
.globl avx
avx:	.quad 0

.text
.macro each_vector what
	\what 0
	\what 1
	\what 2
	\what 3
	\what 4
	\what 5
	\what 6
	\what 7
	\what 8
	\what 9
	\what 10
	\what 11
	\what 12
	\what 13
	\what 14
	\what 15
.endm
.macro load_xmm n
	movups (256 + \n * 32)(%rdi), %xmm\n
.endm
.macro load_ymm n
	vmovups (256 + \n * 32)(%rdi), %ymm\n
.endm
.macro save_xmm n
	movups %xmm\n, (256 + \n * 32)(%rdi)
.endm
.macro save_ymm n
	vmovups %ymm\n, (256 + \n * 32)(%rdi)
.endm

# pass(before, after, site): the red zone has a pattern in it, and must have it after.
.globl pass
pass:
	push %rbx
	push %rbp
	push %r12
	push %r13
	push %r14
	push %r15
	mov %rdi, before(%rip)
	mov %rsi, after(%rip)
	mov %rdx, site(%rip)
	mov %rsp, kept(%rip)
	# A stack of its own, of which the last use is the red zone.
	mov 120(%rdi), %rsp
	mov $-16, %rcx
1:	mov %rcx, (%rsp,%rcx,8)
	inc %rcx
	jnz 1b
	cmpq $0, avx(%rip)
	je 2f
	each_vector load_ymm
	jmp 3f
2:	each_vector load_xmm
3:	fldpi
	# (popf would overwrite the red zone.)
	mov kept(%rip), %rsp
	pushq 128(%rdi)
	mov 0(%rdi), %rax
	mov 8(%rdi), %rbx
	mov 16(%rdi), %rcx
	mov 24(%rdi), %rdx
	mov 32(%rdi), %rsi
	mov 48(%rdi), %rbp
	mov 56(%rdi), %r8
	mov 64(%rdi), %r9
	mov 72(%rdi), %r10
	mov 80(%rdi), %r11
	mov 88(%rdi), %r12
	mov 96(%rdi), %r13
	mov 104(%rdi), %r14
	mov 112(%rdi), %r15
	popfq
	mov 120(%rdi), %rsp
	mov 40(%rdi), %rdi
	jmp *site(%rip)

.globl back
back:
	mov %rdi, scratch(%rip)
	mov after(%rip), %rdi
	mov %rsp, 120(%rdi)
	mov kept(%rip), %rsp
	pushfq
	popq 128(%rdi)
	cld
	mov %rax, 0(%rdi)
	mov %rbx, 8(%rdi)
	mov %rcx, 16(%rdi)
	mov %rdx, 24(%rdi)
	mov %rsi, 32(%rdi)
	mov %rbp, 48(%rdi)
	mov %r8, 56(%rdi)
	mov %r9, 64(%rdi)
	mov %r10, 72(%rdi)
	mov %r11, 80(%rdi)
	mov %r12, 88(%rdi)
	mov %r13, 96(%rdi)
	mov %r14, 104(%rdi)
	mov %r15, 112(%rdi)
	mov scratch(%rip), %rax
	mov %rax, 40(%rdi)
	stmxcsr 136(%rdi)
	fstpl 144(%rdi)
	cmpq $0, avx(%rip)
	je 2f
	each_vector save_ymm
	vzeroupper
	jmp 3f
2:	each_vector save_xmm
3:	# The red zone, if it is as it was.
	mov 120(%rdi), %rdx
	xor %eax, %eax
	mov $-16, %rcx
1:	cmp %rcx, (%rdx,%rcx,8)
	je 4f
	inc %eax
4:	inc %rcx
	jnz 1b
	pop %r15
	pop %r14
	pop %r13
	pop %r12
	pop %rbp
	pop %rbx
	ret

.data
site:	.quad 0
scratch: .quad 0

# A table of sites: where it begins, where its (last) system call ends (0: not to be known).
.section .data.rel.ro,"aw"
.globl sites
sites:
.text
.macro listed name
	.section .data.rel.ro
	.quad \name, \name\()_end, \name\()_text
	.text
.endm
.macro text name, text
	.section .rodata
\name\()_text: .asciz "\text"
	.text
.endm

# At each alignment, with as few bytes around it as can be.
.macro at_alignment n
	.balign 64
	.if \n
	.skip \n, 0xcc
	.endif
aligned_\n: syscall
aligned_\n\()_end: jmp *to_back(%rip)
	listed aligned_\n
	text aligned_\n, "alignment \n"
.endm
.irp n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
	at_alignment \n
.endr

# Functions: rdi is the number. Directly followed by a return; directly before the next function, too.
	.balign 16
.globl returning, repeated
returning:
	mov %rdi, %rax
	syscall
	ret
# Where a loop begins: repeated(number, first, second,
# rounds), where each result is the next one's number.
repeated:
	push %rbx
	mov %rdi, %rax
	mov %rsi, %rdi
	mov %rdx, %rsi
	mov %rcx, %rbx
	xor %edx, %edx
1:	syscall
	dec %rbx
	jnz 1b
	pop %rbx
	ret

# A branch leads to it, and what is before it is not run then.
	.balign 16
preceded: jmp preceded_site
preceded_above:
	mov $1, %eax
preceded_site: syscall
preceded_end: jmp *to_back(%rip)
	jmp preceded_above
	listed preceded
	text preceded, "a branch leads to it"

# A branch leads to behind it, from before it.
	.balign 16
over:	jmp over_site
over_before: jmp over_end
over_site: syscall
over_end: jmp over_on
	.byte 0xcc
over_on: jmp *to_back(%rip)
	jmp over_before
	listed over
	text over, "a branch leads to behind it"

# What is behind it is reached by an address that is computed: nothing shows that it is.
	.balign 16
computed: syscall
computed_end: nop
computed_inside: nop
	nop
	jmp *to_back(%rip)
	text computed, "a computed address leads behind it"
	listed computed
	.balign 16
computed_first: syscall
computed_first_end:
	mov %rax, scratch(%rip)
	lea computed_inside(%rip), %rax
	xchg %rax, scratch(%rip)
	jmp *scratch(%rip)
	text computed_first, "goes on behind another one, inside what a jump would cover"
	listed computed_first

# Two at once: the first one's result is the second one's number.
	.balign 16
.globl two, two_end
two:	syscall
	syscall
two_end: jmp *to_back(%rip)

# Many at once: nothing but sites.
.globl eight, eight_end
eight:	syscall
	syscall
	syscall
	syscall
	syscall
	syscall
	syscall
	syscall
eight_end: jmp *to_back(%rip)

# With a prefix that says nothing.
	.balign 16
prefixed: .byte 0x48, 0x0f, 0x05
prefixed_end: jmp *to_back(%rip)
	listed prefixed
	text prefixed, "with a REX prefix"

# Bytes of a number, which a function returns: it must be as it is, and there is a system call in it.
	.balign 16
.globl number_with_a_call, hidden
number_with_a_call:
	.byte 0xb8
hidden:	.byte 0x0f, 0x05
hidden_end: .byte 0xeb, 0x01	# jmp over the next byte
	.byte 0xc3
	jmp *to_back(%rip)
	text hidden, "inside of a number"
	listed hidden

# Data between code.
	.balign 16
.globl table_with_calls
table_with_calls: .byte 0x0f, 0x05, 0x0f, 0x05, 0x90, 0x0f, 0x05, 0xc3, 0x48, 0xc7, 0xc0, 0x27, 0x00, 0x0f, 0x05, 0x0f

# At the end of a page, at the beginning of one, and across two.
	.balign 4096
	.skip 4094, 0xcc
page_end: syscall
page_end_end: jmp *to_back(%rip)
	listed page_end
	text page_end, "the last bytes of a page"
	.balign 4096
page_begin: syscall
page_begin_end: jmp *to_back(%rip)
	listed page_begin
	text page_begin, "the first bytes of a page"
	.balign 4096
	.skip 4095, 0xcc
across:	syscall
across_end: jmp *to_back(%rip)
	listed across
	text across, "across two pages"

# Jumps of two bytes to and from it, nothing else near.
	.balign 16
	jmp near_site
near:	jmp near_site
	.byte 0xcc
near_site: syscall
near_end: jmp near_on
	.byte 0xcc
near_on: jmp *to_back(%rip)
	listed near
	text near, "short jumps around it"

.section .data.rel.ro
	.quad 0, 0, 0
.data
to_back: .quad back
