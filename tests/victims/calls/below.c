// SPDX-License-Identifier: MIT OR Apache-2.0
// A signal handler on a stack that lies below the thread's own, with nothing mapped between them: between other calls, and in the
// midst of one, which is made again; and calls with the stack pointer at that stack's very end, where nothing is. It says where that
// is, and on a line of input does all three so often.
//
//   below TIMES
#include "check.h"

#include <pthread.h>
#include <sys/mman.h>

#define STACK_BYTES 0x10000

static volatile long handled;
static char *memory;
static int ends[2];
static long times;
static pthread_t reader;
static pid_t reader_tid;

// A call at a place that does not say that the stack has been changed.
__asm__(".text\n.type called_at_end, @function\n"
	"called_at_end: mov $110, %eax\n syscall\n jmp *%rbx\n" // SYS_getppid
	".size called_at_end, . - called_at_end\n");

static long call_at(char *end)
{
	long result;

	__asm__ volatile("mov %%rsp, %%r12\n lea 1f(%%rip), %%rbx\n mov %1, %%rsp\n jmp called_at_end\n1: mov %%r12, %%rsp"
			 : "=a"(result) : "r"(end) : "rbx", "r12", "rcx", "r11", "memory");
	return result;
}

static void handle(int signal)
{
	char *here = (char *)&signal;

	CHECK(here >= memory && here < memory + STACK_BYTES);
	handled++;
}

static void await_sleep(pid_t tid)
{
	char path[64], state = 0;

	snprintf(path, sizeof(path), "/proc/self/task/%d/stat", tid);
	while (state != 'S') {
		FILE *file = fopen(path, "r");

		CHECK(file && fscanf(file, "%*d %*s %c", &state) == 1);
		fclose(file);
	}
}

// Interrupts each of the reader's calls, before there is something to read.
static void *interrupt(void *unused)
{
	for (long i = 0; i < times; i++) {
		await_sleep(reader_tid);
		EQUAL(pthread_kill(reader, SIGUSR1), 0);
		while (handled != times + i + 1)
			;
		EQUAL(write(ends[1], "x", 1), 1);
	}
	return unused;
}

int main(int argc, char **argv)
{
	char line[8];
	pthread_t thread;
	pid_t parent = getppid();

	times = argc > 1 ? atol(argv[1]) : 0;
	memory = mmap(NULL, 2 * STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(memory != MAP_FAILED && memory < line);
	// Pages without rights, so that nobody else is given the place.
	EQUAL(mprotect(memory + STACK_BYTES, STACK_BYTES, PROT_NONE), 0);
	stack_t below = { .ss_sp = memory, .ss_size = STACK_BYTES };
	struct sigaction action = { .sa_handler = handle, .sa_flags = SA_ONSTACK | SA_RESTART };

	EQUAL(sigaltstack(&below, NULL), 0);
	EQUAL(sigaction(SIGUSR1, &action, NULL), 0);
	EQUAL(pipe(ends), 0);
	setvbuf(stdout, NULL, _IOLBF, 0);
	printf("%p\n", (void *)(memory + STACK_BYTES));
	CHECK(fgets(line, sizeof(line), stdin));
	for (long i = 0; i < times; i++)
		EQUAL(raise(SIGUSR1), 0);
	for (long i = 0; i < times; i++)
		EQUAL(call_at(memory + STACK_BYTES), parent);
	reader = pthread_self();
	reader_tid = gettid();
	EQUAL(pthread_create(&thread, NULL, interrupt, NULL), 0);
	for (long i = 0; i < times; i++)
		EQUAL(read(ends[0], line, 1), 1);
	EQUAL(pthread_join(thread, NULL), 0);
	EQUAL(handled, 2 * times);
	return faults != 0;
}
