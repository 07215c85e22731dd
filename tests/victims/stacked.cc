// Knows its own stacks: calls `mark` from many kinds of frames, with the addresses that the C++ run-time's unwinder finds there.
//
//   stacked LIBRARY
//
// All is done twice, from the same places. The first time the stacks are learned; then it says "ready" and waits for a line. The second
// time `mark` is called with what was learned. (Return addresses may be replaced then.) At the end it prints how often.
#include <dlfcn.h>
#include <execinfo.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#define SOLID extern "C" __attribute__((noinline))
#define LEAVES asm volatile("" ::: "memory") // So that the last call of a function is no jump.

enum { FRAMES = 64, STACKS = 512 };

// What `mark` is called with. In `frames`, 0 is any one frame.
struct stack {
	char name[16];
	unsigned long count;
	void *frames[FRAMES];
};

static struct stack learned[STACKS];
static int pass, next_stack, marked;

// Probed. `stack` is of its caller's caller.
SOLID void mark(const struct stack *stack)
{
	asm volatile("" ::"r"(stack) : "memory");
}

static void learn(struct stack *stack, const char *name)
{
	void *frames[FRAMES];
	int count = backtrace(frames, FRAMES);

	memset(stack, 0, sizeof(*stack));
	strncpy(stack->name, name, sizeof(stack->name) - 1);
	stack->count = count;
	memcpy(stack->frames, frames, count * sizeof(*frames));
}

// Called from the frames that matter. What is above `behind` (from `outer`) was not found by the unwinder.
static void told(const char *name, int fresh, const struct stack *outer)
{
	static thread_local struct stack now;
	struct stack *stack = fresh ? &now : &learned[next_stack++];

	if (!pass || fresh) {
		learn(stack, name);
		if (outer) {
			// The frame that called the code without tables, and its callers.
			stack->frames[stack->count++] = 0;
			for (unsigned long at = 2; at < outer->count && stack->count < FRAMES; at++)
				stack->frames[stack->count++] = outer->frames[at];
		}
	}
	if (pass) {
		mark(stack);
		marked++;
	}
}

SOLID void tell(const char *name)
{
	told(name, 0, 0);
	LEAVES;
}

SOLID void tell_fresh(const char *name)
{
	told(name, 1, 0);
	LEAVES;
}

// ---- plain calls ----

SOLID long deep(int depth, volatile long *sum)
{
	volatile char room[depth * 24 + 1];

	room[0] = depth;
	if (!depth)
		tell("plain");
	else
		*sum += deep(depth - 1, sum);
	LEAVES;
	return room[0];
}

// Frame pointers here: the others have none.
SOLID __attribute__((optimize("no-omit-frame-pointer"))) void framed(void (*next)(void))
{
	next();
	LEAVES;
}

static void tell_framed(void)
{
	tell("framed");
	LEAVES;
}

// A stack that is realigned.
SOLID void aligned(void)
{
	volatile long room[16] __attribute__((aligned(128)));

	room[3] = 1;
	tell("aligned");
	LEAVES;
	room[3]++;
}

SOLID int compare(const void *a, const void *b)
{
	tell("qsort");
	return *(const int *)a - *(const int *)b;
}

// ---- exceptions ----

struct Guard {
	~Guard()
	{
		tell("unwinding");
		LEAVES;
	}
};

SOLID void throws(int depth)
{
	Guard guard;

	if (depth)
		throws(depth - 1);
	else
		throw depth;
	LEAVES;
}

SOLID void catches(void)
{
	try {
		throws(2);
	} catch (int) {
		tell("caught");
	}
	LEAVES;
}

// ---- signals ----

static sigjmp_buf behind;
static const char *signal_name;

SOLID void handler(int)
{
	tell(signal_name);
	LEAVES;
}

SOLID void leaving_handler(int)
{
	tell(signal_name);
	siglongjmp(behind, 1);
}

static void handle(int number, void (*with)(int), int flags, const char *name)
{
	struct sigaction action = {};

	action.sa_handler = with;
	action.sa_flags = flags;
	signal_name = name;
	sigaction(number, &action, 0);
}

// Probed, too: its first instruction faults, in the stub then.
asm(".text\n.globl touch\n.type touch, @function\ntouch: .cfi_startproc\n"
    "	mov (%rdi), %rax\n	nop\n	nop\n	nop\n	nop\n	ret\n	.cfi_endproc\n.size touch, . - touch\n");
extern "C" long touch(void *);

SOLID void signals(void)
{
	static char room[1 << 16];
	stack_t stack = {};

	handle(SIGUSR1, handler, 0, "signal");
	raise(SIGUSR1);
	stack.ss_sp = room;
	stack.ss_size = sizeof(room);
	sigaltstack(&stack, 0);
	handle(SIGUSR1, handler, SA_ONSTACK, "sigaltstack");
	raise(SIGUSR1);
	handle(SIGSEGV, leaving_handler, SA_ONSTACK, "vdso");
	if (!sigsetjmp(behind, 1))
		clock_gettime(CLOCK_MONOTONIC, (struct timespec *)8);
	handle(SIGSEGV, leaving_handler, 0, "fault");
	if (!sigsetjmp(behind, 1))
		touch((void *)8);
	LEAVES;
}

// ---- code without a table ----

static struct stack around;

static void tell_without_table(void)
{
	told("no table", 0, &around);
	LEAVES;
}

SOLID void without_table(unsigned char *code)
{
	// push rbp; mov rbp, rsp; call rdi; pop rbp; ret
	static const unsigned char bytes[] = { 0x55, 0x48, 0x89, 0xe5, 0xff, 0xd7, 0x5d, 0xc3 };

	memcpy(code, bytes, sizeof(bytes));
	learn(&around, "");
	((void (*)(void (*)(void)))code)(tell_without_table);
	LEAVES;
}

// ---- libraries ----

SOLID void library(const char *path)
{
	void *handle = dlopen(path, RTLD_LAZY);
	void (*call)(void (*)(const char *)) = handle ? (void (*)(void (*)(const char *)))dlsym(handle, "stacked") : 0;

	if (!call) {
		fprintf(stderr, "%s\n", dlerror());
		exit(2);
	}
	call(tell_fresh);
	dlclose(handle);
	LEAVES;
}

extern "C" void in_rust(void (*)(const char *));

static void *thread(void *)
{
	tell("thread");
	LEAVES;
	return 0;
}

SOLID void all(const char *path, unsigned char *code)
{
	int numbers[9] = { 3, 1, 4, 1, 5, 9, 2, 6, 5 };
	volatile long sum = 0;
	pthread_t other;

	next_stack = 0;
	deep(0, &sum);
	deep(12, &sum);
	framed(tell_framed);
	aligned();
	qsort(numbers, 9, sizeof(int), compare);
	catches();
	signals();
	without_table(code);
	in_rust(tell);
	pthread_create(&other, 0, thread, 0);
	pthread_join(other, 0);
	library(path);
	LEAVES;
}

int main(int, char **argv)
{
	unsigned char *code = (unsigned char *)mmap(0, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char line[16];

	for (pass = 0; pass < 2; pass++) {
		if (pass) {
			printf("ready\n");
			fflush(stdout);
			if (!fgets(line, sizeof(line), stdin))
				return 1;
		}
		all(argv[1], code);
	}
	printf("%d\n", marked);
	fflush(stdout);
	while (fgets(line, sizeof(line), stdin))
		;
	return 0;
}
