// SPDX-License-Identifier: MIT OR Apache-2.0
// Threads that come and go, by libc and by the bare call; each makes calls that can be counted.
#include "check.h"
#include <linux/sched.h>
#include <pthread.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>

#define CALLS 20
#define STACK 16384

static pid_t self, parent;

static void *work(void *number)
{
	for (int i = 0; i < CALLS; i++)
		EQUAL(RAW(SYS_getppid), parent);
	EQUAL(getpid(), self);
	CHECK(RAW(SYS_gettid) != self);
	return number;
}

static void *end_otherwise(void *number)
{
	work(NULL);
	pthread_exit(number);
}

static void by_libc(void)
{
	pthread_t threads[8];

	for (int round = 0; round < 100; round++) {
		for (long i = 0; i < 8; i++)
			EQUAL(pthread_create(&threads[i], NULL, i % 2 ? work : end_otherwise, (void *)i), 0);
		for (long i = 0; i < 8; i++) {
			void *result;

			EQUAL(pthread_join(threads[i], &result), 0);
			EQUAL(result, i);
		}
	}
}

static volatile int ended;

static void *detached(void *unused)
{
	work(NULL);
	__atomic_fetch_add(&ended, 1, __ATOMIC_SEQ_CST);
	return unused;
}

static void left_alone(void)
{
	pthread_attr_t attributes;
	pthread_t thread;

	pthread_attr_init(&attributes);
	pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
	for (int i = 0; i < 50; i++)
		EQUAL(pthread_create(&thread, &attributes, detached, NULL), 0);
	while (__atomic_load_n(&ended, __ATOMIC_SEQ_CST) < 50)
		sched_yield();
}

// A thread without a C library: it has its creator's FS base (no CLONE_SETTLS), and nothing may be kept there.
long bare_thread(unsigned long flags, void *stack, int *tid, long number, void *arguments, long size);
__asm__(".globl bare_thread\n"
	// rcx has the number of the call: clone(flags, stack, tid, tid) or clone3(arguments, size).
	"bare_thread:\n"
	"	mov %rcx, %rax\n"
	"	mov %rdx, %r10\n"
	"	cmp $56, %rax\n"
	"	je 1f\n"
	"	mov %r8, %rdi\n"
	"	mov %r9, %rsi\n"
	"1:	syscall\n"
	"	test %rax, %rax\n"
	"	jnz 3f\n"
	"	mov $20, %ebx\n"
	"2:	mov $110, %eax\n"
	"	syscall\n"
	"	dec %ebx\n"
	"	jnz 2b\n"
	"	xor %edi, %edi\n"
	"	mov $60, %eax\n"
	"	syscall\n"
	"	ud2\n"
	"3:	ret\n");

#define FLAGS (CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM)

static void by_hand(void)
{
	for (int i = 0; i < 200; i++) {
		char *stack = mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		volatile int tid = -1;
		long made;

		if (i % 2) {
			struct clone_args arguments = {
				.flags = FLAGS | CLONE_PARENT_SETTID | CLONE_CHILD_CLEARTID,
				.child_tid = (unsigned long)&tid,
				.parent_tid = (unsigned long)&tid,
				.stack = (unsigned long)stack,
				.stack_size = STACK,
			};
			made = bare_thread(0, NULL, NULL, SYS_clone3, &arguments, sizeof(arguments));
		} else {
			made = bare_thread(FLAGS | CLONE_PARENT_SETTID | CLONE_CHILD_CLEARTID, stack + STACK, (int *)&tid,
					   SYS_clone, NULL, 0);
		}
		CHECK(made > 0);
		if (made <= 0)
			return;
		// The kernel clears it when the thread has ended.
		while (tid)
			__builtin_ia32_pause();
		EQUAL(munmap(stack, STACK), 0);
	}
}

// Processes made by threads while others come and go.
static void *forks(void *number)
{
	for (int i = 0; i < 10; i++) {
		int status;
		pid_t child = fork();

		if (!child) {
			for (int at = 0; at < CALLS; at++)
				if (RAW(SYS_getppid) != self)
					_exit(200);
			_exit(i + (long)number * 10);
		}
		EQUAL(waitpid(child, &status, 0), child);
		EQUAL(WEXITSTATUS(status), i + (long)number * 10);
	}
	return NULL;
}

static void with_forks(void)
{
	pthread_t threads[4], others[4];

	for (long i = 0; i < 4; i++) {
		EQUAL(pthread_create(&threads[i], NULL, forks, (void *)i), 0);
		EQUAL(pthread_create(&others[i], NULL, work, NULL), 0);
	}
	for (int i = 0; i < 4; i++) {
		EQUAL(pthread_join(threads[i], NULL), 0);
		EQUAL(pthread_join(others[i], NULL), 0);
	}
}

int main(void)
{
	self = getpid();
	parent = getppid();
	by_libc();
	left_alone();
	by_hand();
	with_forks();
	return faults != 0;
}
