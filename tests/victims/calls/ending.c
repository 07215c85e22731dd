// SPDX-License-Identifier: MIT OR Apache-2.0
// ending CALLS: a thread whose TCB is unmapped before the process is attached. With CALLS it makes so many calls of
// getppid then; without, its stack is gone, too, as where musl's threads end, and all that it can do is to exit.
#include "check.h"
#include <sched.h>
#include <sys/mman.h>

#define PAGE 4096
// Of clone(2): VM, FS, FILES, SIGHAND, THREAD, SYSVSEM, SETTLS, PARENT_SETTID, CHILD_CLEARTID.
#define FLAGS "0x3d0f00"

__attribute__((visibility("hidden"), used)) volatile int unmapped, go_on;

// Begins the thread, which unmaps these bytes first.
long begin(void *stack, void *control_block, volatile int *tid, void *bytes, long count, long calls);
__asm__(".globl begin\n"
	".type begin, @function\n"
	"begin:\n"
	"	push %rbx\n"
	"	push %rbp\n"
	"	push %r12\n"
	"	mov %rcx, %rbx\n"
	"	mov %r8, %rbp\n"
	"	mov %r9, %r12\n"
	"	mov %rsi, %r8\n"
	"	mov %rdi, %rsi\n"
	"	mov %rdx, %r10\n"
	"	mov $" FLAGS ", %edi\n"
	"	mov $56, %eax\n"
	"	syscall\n"
	"	test %rax, %rax\n"
	"	jnz 4f\n"
	"	mov %rbx, %rdi\n"
	"	mov %rbp, %rsi\n"
	"	mov $11, %eax\n"
	"	syscall\n"
	"	movl $1, unmapped(%rip)\n"
	"1:	pause\n"
	"	cmpl $0, go_on(%rip)\n"
	"	je 1b\n"
	"2:	test %r12, %r12\n"
	"	jz 3f\n"
	"	mov $110, %eax\n"
	"	syscall\n"
	"	dec %r12\n"
	"	jmp 2b\n"
	"3:	xor %edi, %edi\n"
	"	mov $60, %eax\n"
	"	syscall\n"
	"	ud2\n"
	"4:	pop %r12\n"
	"	pop %rbp\n"
	"	pop %rbx\n"
	"	ret\n"
	".size begin, . - begin\n");

int main(int count, char **words)
{
	long calls = count > 1 ? atol(words[1]) : 0;
	volatile int tid = -1;
	char byte;
	// The stack, and the TCB, which names itself.
	char *pages = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char **block = (char **)(pages + PAGE);

	*block = pages + PAGE;
	CHECK(begin(pages + PAGE, block, &tid, calls ? (void *)block : pages, calls ? PAGE : 2 * PAGE, calls) > 0);
	while (!unmapped)
		sched_yield();
	printf("ready\n");
	fflush(stdout);
	EQUAL(read(0, &byte, 1), 1);
	// (It is known by now where C libraries keep a thread's id.)
	for (int i = 0; i < 10; i++)
		RAW(SYS_getpgid, 0);
	go_on = 1;
	// The kernel clears it when the thread has ended.
	while (tid)
		sched_yield();
	return faults != 0;
}
