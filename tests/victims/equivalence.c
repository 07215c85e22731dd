// SPDX-License-Identifier: MIT OR Apache-2.0
// A victim: calls random functions (tests/tests/random_code/write.rs), each with random registers, and prints a hash of what it can
// see of each call: registers, vector registers, memory, the stack above, and signals with their registers.
//
//   equivalence [full] [strict] [only NUMBER]... [count FILE]
//
// full: all values instead of hashes; strict: also where faults are, which is in a stub if a displaced instruction faults; only: no
// other functions; count: executes single steps, and writes how often each byte of the
// code was the first one of an executed instruction (4 bytes each).
#define _GNU_SOURCE
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

// What write.rs makes. Offsets are from code_start.
extern const char code_start[], code_end[];
extern const int32_t function_offsets[];
extern const uint32_t function_count;

enum { REGISTERS = 15, RUNS = 2, STACK = 1 << 20, CALL_STACK = 1 << 18, ABOVE = 32, TRAP_FLAG = 0x100 };
enum { FUEL = 12, LOOPS = 3, RESUMED = 0, LEFT = 1, SKIPPED = 2, UNEXPECTED = 3 };

// What functions find at r15; write.rs knows the places.
struct scratch {
	uint8_t before[256];
	uint8_t data[256]; // (r15 leads here)
	uint64_t fault, resume;
	uint32_t mode, flags, bytes, fuel, loops, unused[5];
	uint64_t results[32];
};

struct state {
	uint64_t registers[REGISTERS]; // rax rcx rdx rbx rsi rdi rbp r8 ... r14, r15
	uint8_t vectors[16][16];
};

static struct scratch scratch __attribute__((aligned(64)));
static char stack[STACK] __attribute__((aligned(4096)));
static char other_stack[1 << 16] __attribute__((aligned(64)));
static uint32_t *counts;
static uint64_t last_counted;
static volatile int is_full, is_strict, is_inside;
static sigjmp_buf way_out;
static uint64_t hash, signals;

struct state *call_state;
uint64_t call_rsp, call_function, call_saved_rdi, call_flags;

// Never called: probes here take all one-byte jumps of the process. (The bytes behind each first one are a distance that is free.)
asm(".text\n.p2align 5\n.globl ballast\nballast:\n.set at, 0x4000\n.rept 80\n.byte 0x48, 0x8d, 0x80\n.2byte at\n.2byte 0\n"
    ".skip 25, 0x90\n.set at, at + 1\n.endr\n");

void call(void);
asm(".text\n"
    "call:\n"
    "	push %rbx; push %rbp; push %r12; push %r13; push %r14; push %r15\n"
    "	mov call_state(%rip), %rdi\n"
    "	xchg %rsp, call_rsp(%rip)\n"
    "	movups 0x78(%rdi), %xmm0;   movups 0x88(%rdi), %xmm1;   movups 0x98(%rdi), %xmm2;   movups 0xa8(%rdi), %xmm3\n"
    "	movups 0xb8(%rdi), %xmm4;   movups 0xc8(%rdi), %xmm5;   movups 0xd8(%rdi), %xmm6;   movups 0xe8(%rdi), %xmm7\n"
    "	movups 0xf8(%rdi), %xmm8;   movups 0x108(%rdi), %xmm9;  movups 0x118(%rdi), %xmm10; movups 0x128(%rdi), %xmm11\n"
    "	movups 0x138(%rdi), %xmm12; movups 0x148(%rdi), %xmm13; movups 0x158(%rdi), %xmm14; movups 0x168(%rdi), %xmm15\n"
    "	mov (%rdi), %rax; mov 8(%rdi), %rcx; mov 16(%rdi), %rdx; mov 24(%rdi), %rbx; mov 32(%rdi), %rsi\n"
    "	mov 48(%rdi), %rbp; mov 56(%rdi), %r8; mov 64(%rdi), %r9; mov 72(%rdi), %r10; mov 80(%rdi), %r11\n"
    "	mov 88(%rdi), %r12; mov 96(%rdi), %r13; mov 104(%rdi), %r14; mov 112(%rdi), %r15; mov 40(%rdi), %rdi\n"
    "	pushq call_flags(%rip); popfq\n"
    "	call *call_function(%rip)\n"
    "	pushfq; andq $~0x100, (%rsp); popfq\n"
    "	mov %rdi, call_saved_rdi(%rip)\n"
    "	mov call_state(%rip), %rdi\n"
    "	mov %rax, (%rdi); mov %rcx, 8(%rdi); mov %rdx, 16(%rdi); mov %rbx, 24(%rdi); mov %rsi, 32(%rdi)\n"
    "	mov %rbp, 48(%rdi); mov %r8, 56(%rdi); mov %r9, 64(%rdi); mov %r10, 72(%rdi); mov %r11, 80(%rdi)\n"
    "	mov %r12, 88(%rdi); mov %r13, 96(%rdi); mov %r14, 104(%rdi); mov %r15, 112(%rdi)\n"
    "	mov call_saved_rdi(%rip), %rax; mov %rax, 40(%rdi)\n"
    "	movups %xmm0, 0x78(%rdi);   movups %xmm1, 0x88(%rdi);   movups %xmm2, 0x98(%rdi);   movups %xmm3, 0xa8(%rdi)\n"
    "	movups %xmm4, 0xb8(%rdi);   movups %xmm5, 0xc8(%rdi);   movups %xmm6, 0xd8(%rdi);   movups %xmm7, 0xe8(%rdi)\n"
    "	movups %xmm8, 0xf8(%rdi);   movups %xmm9, 0x108(%rdi);  movups %xmm10, 0x118(%rdi); movups %xmm11, 0x128(%rdi)\n"
    "	movups %xmm12, 0x138(%rdi); movups %xmm13, 0x148(%rdi); movups %xmm14, 0x158(%rdi); movups %xmm15, 0x168(%rdi)\n"
    "	xchg %rsp, call_rsp(%rip)\n"
    "	pop %r15; pop %r14; pop %r13; pop %r12; pop %rbp; pop %rbx\n"
    "	ret\n");

static uint64_t next(uint64_t *state)
{
	uint64_t mixed = *state += 0x9e3779b97f4a7c15;

	mixed = (mixed ^ mixed >> 30) * 0xbf58476d1ce4e5b9;
	mixed = (mixed ^ mixed >> 27) * 0x94d049bb133111eb;
	return mixed ^ mixed >> 31;
}

// What has been seen: a value with its name.
static void see(const char *name, int number, uint64_t value)
{
	hash = (hash ^ value) * 0x100000001b3;
	hash ^= hash >> 29;
	if (is_full)
		printf("  %s %d %#lx\n", name, number, value);
}

static void see_bytes(const char *name, const void *bytes, size_t count)
{
	for (size_t at = 0; at < count; at += 8) {
		uint64_t value;

		memcpy(&value, (const char *)bytes + at, 8);
		see(name, at, value);
	}
}

static void count(uint64_t address)
{
	uint64_t at = address - (uint64_t)code_start;
	uint8_t first;

	if (at >= (uint64_t)(code_end - code_start)) {
		last_counted = 0;
		return;
	}
	first = code_start[at];
	// An instruction that repeats itself is executed once.
	if (address != last_counted || (first != 0xf2 && first != 0xf3))
		counts[at]++;
	last_counted = address;
}

static void on_signal(int signal, siginfo_t *info, void *context)
{
	static const int order[] = { REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSI, REG_RDI, REG_RBP, REG_R8,
				     REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15, REG_RSP };
	greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
	uint64_t fault = (uint64_t)code_start + scratch.fault;

	// (The kernel says the same of all single steps, but not always TRAP_TRACE; of an `int3` it says SI_KERNEL.)
	if (counts && signal == SIGTRAP && info->si_code != SI_KERNEL) {
		count(registers[REG_RIP]);
		return;
	}
	signals++;
	see("signal", signal, (uint64_t)(uint32_t)info->si_code);
	if (signal == SIGSEGV || signal == SIGBUS)
		see("si_addr", 0, (uint64_t)info->si_addr);
	else if (signal != SIGTRAP && is_strict)
		see("si_addr - fault", 0, (uint64_t)info->si_addr - fault);
	// (Under ring3, others show where the instruction was moved to.)
	if (signal == SIGSEGV || signal == SIGBUS || is_strict)
		see("rip - fault", 0, registers[REG_RIP] - fault);
	for (int i = 0; i < 16; i++)
		see("register at signal", i, registers[order[i]]);
	see("flags at signal", 0, registers[REG_EFL] & scratch.flags);
	if (!is_inside) {
		printf("signal %d outside of functions, at %#llx\n", signal, registers[REG_RIP]);
		fflush(stdout);
		_Exit(3);
	}
	switch (scratch.mode) {
	case LEFT:
		siglongjmp(way_out, 1);
	case SKIPPED:
		registers[REG_RIP] += scratch.bytes;
		break;
	case RESUMED:
		registers[REG_RIP] = scratch.resume;
		break;
	default:
		printf("unexpected signal %d at %#llx\n", signal, registers[REG_RIP]);
		siglongjmp(way_out, 1);
	}
	scratch.mode = UNEXPECTED;
	if (counts) {
		last_counted = 0;
		count(registers[REG_RIP]);
	}
}

static void call_once(uint32_t number, int run)
{
	uint64_t seed = (uint64_t)number << 8 | run;
	stack_t alternate = { .ss_sp = other_stack, .ss_size = sizeof(other_stack) };
	struct state state;
	uint64_t *top = (uint64_t *)(stack + CALL_STACK);

	for (size_t i = 0; i < sizeof(scratch) / 8; i++)
		((uint64_t *)&scratch)[i] = next(&seed);
	for (int i = -512; i < ABOVE; i++)
		top[i] = next(&seed);
	for (size_t i = 0; i < sizeof(state) / 8; i++)
		((uint64_t *)&state)[i] = next(&seed);
	memset(&scratch.fault, 0, 64);
	memset(scratch.results, 0, sizeof(scratch.results));
	scratch.mode = UNEXPECTED;
	scratch.fuel = FUEL;
	scratch.loops = LOOPS;
	state.registers[14] = (uint64_t)scratch.data;
	alternate.ss_flags = run % 2 ? 0 : SS_DISABLE;
	sigaltstack(&alternate, NULL);
	call_state = &state;
	call_function = (uint64_t)code_start + function_offsets[number];
	// Status flags mean nothing to functions.
	call_flags = 0x202 | (next(&seed) & 0x8d5) | (counts ? TRAP_FLAG : 0);
	call_rsp = (uint64_t)top;
	last_counted = 0;
	is_inside = 1;
	if (sigsetjmp(way_out, 1) == 0) {
		call();
		see("rsp", 0, call_rsp - (uint64_t)top);
		for (int i = 0; i < REGISTERS; i++)
			see("register", i, state.registers[i]);
		see_bytes("vector", state.vectors, sizeof(state.vectors));
	}
	is_inside = 0;
	see_bytes("memory", &scratch, sizeof(scratch));
	see_bytes("stack", top, ABOVE * 8);
}

static char **words;

static int is_wanted(uint32_t number)
{
	int wanted = 1;

	for (char **word = words; *word; word++) {
		if (strcmp(*word, "only") == 0 && word[1]) {
			if ((uint32_t)atoi(word[1]) == number)
				return 1;
			wanted = 0;
		}
	}
	return wanted;
}

static void *work(void *unused)
{
	for (uint32_t i = 0; i < function_count; i++) {
		if (!is_wanted(i))
			continue;
		if (is_full)
			printf("function %u\n", i);
		hash = 0;
		for (int run = 0; run < RUNS; run++)
			call_once(i, run);
		printf("%u %016lx\n", i, hash);
	}
	return unused;
}

int main(int argc, char **argv)
{
	static const int taken[] = { SIGILL, SIGSEGV, SIGBUS, SIGFPE, SIGTRAP };
	struct sigaction action = { .sa_sigaction = on_signal, .sa_flags = SA_SIGINFO | SA_ONSTACK };
	const char *counts_path = NULL;
	pthread_attr_t attributes;
	pthread_t thread;

	words = argv + 1;
	for (int i = 1; i < argc; i++) {
		is_full |= strcmp(argv[i], "full") == 0;
		is_strict |= strcmp(argv[i], "strict") == 0;
		if (strcmp(argv[i], "count") == 0)
			counts_path = argv[i + 1];
	}
	// What is printed before the process ends by a signal tells which function did it.
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (counts_path)
		counts = calloc(code_end - code_start, sizeof(*counts));
	for (size_t i = 0; i < sizeof(taken) / sizeof(*taken); i++)
		sigaction(taken[i], &action, NULL);
	pthread_attr_init(&attributes);
	pthread_attr_setstack(&attributes, stack, sizeof(stack));
	pthread_create(&thread, &attributes, work, NULL);
	pthread_join(thread, NULL);
	printf("end %lu\n", signals);
	if (counts_path) {
		FILE *file = fopen(counts_path, "w");

		fwrite(counts, sizeof(*counts), code_end - code_start, file);
		fclose(file);
	}
	return 0;
}
