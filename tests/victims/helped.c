// SPDX-License-Identifier: MIT OR Apache-2.0
// Calls functions whose probes try the helpers: names and arguments are those of tests/programs/helpers.bpf.c.
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile long sink;

#define PROBED(name)                                                                 \
	__attribute__((noinline, noclone)) long name(long a, long b, long c, long d, long e, long f) \
	{                                                                            \
		sink += a + b + c + d + e + f;                                       \
		return sink;                                                         \
	}

PROBED(reads_user)
PROBED(reads_any)
PROBED(copies)
PROBED(copies_of_task)
PROBED(strings_user)
PROBED(strings_any)
PROBED(reads_kernel)
PROBED(updates)
PROBED(updates_per_cpu)
PROBED(queues)
PROBED(counts)
PROBED(tries)
PROBED(lookups_of_cpus)
PROBED(who)
PROBED(texts)
PROBED(rings)
PROBED(outputs)
PROBED(clocks)
PROBED(numbers)
PROBED(writes)

// Returns its own address.
__attribute__((noinline, noclone)) long registers(long a, long b, long c, long d, long e, long f)
{
	sink += a + b + c + d + e;
	return f;
}

// A chain of calls with frame pointers, at addresses that no compiler moves; its oldest frame has none. The first
// argument stays where it is.
void chained(void *self);
asm(".text\n"
    ".type chained, @function\n"
    ".globl chained\n"
    "chained: push %rbp\n"
    "	xor %ebp, %ebp\n"
    "	call chain_outer\n"
    "	call chain_of_task\n"
    "	call chain_bare\n"
    "	mov $150, %esi\n"
    "	call chain_deep\n"
    "	call chain_broken\n"
    "	pop %rbp\n"
    "	ret\n"
    ".size chained, . - chained\n"
#define FRAMED(name, body)                                                           \
    ".type " #name ", @function\n.globl " #name "\n"                                 \
    #name ": push %rbp\n	mov %rsp, %rbp\n	sub $16, %rsp\n" body               \
    "	leave\n	ret\n.size " #name ", . - " #name "\n"
    FRAMED(chain_outer, "	call chain_middle\n")
    FRAMED(chain_middle, "	call hopped\n")
    FRAMED(stacks, "")
    FRAMED(chain_of_task, "	call stacks_of_task\n")
    FRAMED(stacks_of_task, "")
    FRAMED(chain_bare, "	call stacks_bare\n")
    FRAMED(chain_deep, "	dec %esi\n	jz 1f\n	call chain_deep\n	jmp 2f\n1:	call stacks_deep\n2:\n")
    FRAMED(stacks_deep, "")
    FRAMED(chain_broken, "	movq $8, (%rbp)\n	call stacks_broken\n	movq $0, (%rbp)\n")
    FRAMED(stacks_broken, "")
    // Goes on to another probed function by a jump.
    ".type hopped, @function\n.globl hopped\n"
    "hopped: nopl 0(%rax, %rax, 1)\n	jmp stacks\n.size hopped, . - hopped\n"
    ".type stacks_bare, @function\n.globl stacks_bare\n"
    "stacks_bare: nopl 0(%rax, %rax, 1)\n	ret\n.size stacks_bare, . - stacks_bare\n");

// Calls functions with numbers in the registers that they keep.
void marked(void);
asm(".text\n"
    ".type marked, @function\n"
    "marked: push %rbx\n	push %rbp\n	push %r12\n	push %r13\n	push %r14\n	push %r15\n	sub $8, %rsp\n"
    "	mov $11, %ebx\n	mov $12, %ebp\n	mov $13, %r12d\n	mov $14, %r13d\n	mov $15, %r14d\n	mov $16, %r15d\n"
    "	call kept\n"
    "	call kept_read\n"
    "	lea kept_task(%rip), %rdx\n	mov $-17, %rdi\n	call kept_task\n"
    "	call kept_both\n"
    "	add $8, %rsp\n	pop %r15\n	pop %r14\n	pop %r13\n	pop %r12\n	pop %rbp\n	pop %rbx\n	ret\n"
    ".size marked, . - marked\n"
    ".type kept, @function\n.globl kept\n"
    "kept: nopl 0(%rax, %rax, 1)\n	ret\n.size kept, . - kept\n"
    ".type kept_read, @function\n.globl kept_read\n"
    "kept_read: nopl 0(%rax, %rax, 1)\n	ret\n.size kept_read, . - kept_read\n"
    ".type kept_task, @function\n.globl kept_task\n"
    "kept_task: nopl 0(%rax, %rax, 1)\n	ret\n.size kept_task, . - kept_task\n"
    ".type kept_both, @function\n.globl kept_both\n"
    "kept_both: nopl 0(%rax, %rax, 1)\n	ret\n.size kept_both, . - kept_both\n");

static void tell_who(void)
{
	who(getpid(), gettid(), getuid(), getgid(), 0, 0);
}

static void *in_thread(void *unused)
{
	tell_who();
	prctl(PR_SET_NAME, "a long thread name");
	tell_who();
	return unused;
}

// Threads that come after others get their TCBs; the last one here also comes from a thread that told nothing.
static pthread_t first, second;
static sem_t second_ends;

static void *in_last(void *unused)
{
	tell_who();
	return unused;
}

static void *in_second(void *unused)
{
	pthread_t last;

	pthread_join(first, NULL);
	pthread_create(&last, NULL, in_last, NULL);
	pthread_join(last, NULL);
	sem_post(&second_ends);
	return unused;
}

static void *in_first(void *unused)
{
	tell_who();
	pthread_create(&second, NULL, in_second, NULL);
	return unused;
}

static void everybody(void)
{
	pthread_t thread;

	tell_who();
	for (int i = 0; i < 2; i++) {
		pthread_create(&thread, NULL, in_thread, NULL);
		pthread_join(thread, NULL);
	}
	sem_init(&second_ends, 0, 0);
	pthread_create(&first, NULL, in_first, NULL);
	sem_wait(&second_ends);
	pthread_join(second, NULL);
	prctl(PR_SET_NAME, "renamed");
	tell_who();
	if (fork() == 0) {
		tell_who();
		pthread_create(&thread, NULL, in_thread, NULL);
		pthread_join(thread, NULL);
		_exit(0);
	}
	wait(NULL);
	tell_who();
}

// On one CPU, so that the order in which a reader finds the samples is known.
static void outputs_on(int cpu, int times)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	sched_setaffinity(0, sizeof(set), &set);
	while (times--)
		outputs(0, 0, 0, 0, 0, 0);
}

int main(void)
{
	long page = sysconf(_SC_PAGESIZE);
	int protection = PROT_READ | PROT_WRITE, flags = MAP_PRIVATE | MAP_ANONYMOUS;
	// A page with nothing behind it, and one that nobody may read.
	char *pages = mmap(NULL, 2 * page, protection, flags, -1, 0);
	char *closing = mmap(NULL, 2 * page, protection, flags, -1, 0);
	char *hidden = mmap(NULL, page, PROT_NONE, flags, -1, 0);
	char *edge = pages + page - 8, *open = closing + page - 12, *written = pages;
	char *constant = mmap(NULL, page, PROT_READ, flags, -1, 0);
	static char text[32] = "fourteen with";
	char line[16];

	munmap(pages + page, page);
	munmap(closing + page, page);
	memcpy(edge, "at edge", 8);
	memcpy(open, "no end at al", 12);
	setvbuf(stdout, NULL, _IONBF, 0);
	setvbuf(stdin, NULL, _IONBF, 0);
	puts("ready");
	if (!fgets(line, sizeof(line), stdin))
		return 1;
#define AT(pointer) ((long)(pointer))
	reads_user(AT(text), AT(edge), AT(hidden), 0, 0, 0);
	reads_any(AT(text), AT(edge), AT(hidden), 0, 0, 0);
	copies(AT(text), AT(edge), AT(hidden), 0, 0, 0);
	copies_of_task(AT(text), AT(edge), AT(hidden), 0, 0, 0);
	strings_user(AT(text), AT(edge), AT(hidden), AT(text + 13), AT(open), 0);
	strings_any(AT(text), AT(edge), AT(hidden), AT(text + 13), AT(open), 0);
	reads_kernel(AT(text), 0, 0, 0, 0, 0);
	updates(0, 0, 0, 0, 0, 0);
	updates_per_cpu(0, 0, 0, 0, 0, 0);
	queues(0, 0, 0, 0, 0, 0);
	counts(0, 0, 0, 0, 0, 0);
	tries(0, 0, 0, 0, 0, 0);
	lookups_of_cpus(0, 0, 0, 0, 0, 0);
	chained(chained);
	everybody();
	registers(-1, 2, 0x123456789abcdef0, -4, 5, AT(registers));
	marked();
	texts(AT(text), 0, 0, 0, 0, 0);
	rings(0, 0, 0, 0, 0, 0);
	outputs_on(0, 3);
	outputs_on(sysconf(_SC_NPROCESSORS_ONLN) - 1, 2);
	clocks(sysconf(_SC_NPROCESSORS_CONF), 0, 0, 0, 0, 0);
	numbers(0, 0, 0, 0, 0, 0);
	memset(written, '.', 16);
	writes(AT(written), AT(constant), AT(edge), AT(hidden), 0, 0);
	printf("%.16s|%d\n", written, constant[0]);
	return fgets(line, sizeof(line), stdin) ? 0 : 1;
}
