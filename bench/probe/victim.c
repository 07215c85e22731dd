// SPDX-License-Identifier: MIT OR Apache-2.0
// A victim whose functions begin in three ways, each of which the kernel probes at a different cost.
//
//   victim [THREADS wait|spin]
//
// Prints "ready". For each line "SHAPE N" of input it calls the function victim_SHAPE N times, for some shapes through others, and prints
// "NANOSECONDS TOTAL": the time of these calls, and how often this function was called since the start.
// Further threads wait or spin until the end of input.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../measured.h"

// Each returns its argument plus 1. The first instruction is the shape.
#define FUNCTION(name, body)                                                                                          \
	__asm__(".pushsection .text\n.p2align 4\n.globl victim_" name "\n.type victim_" name ", @function\n"          \
		"victim_" name ":\n" body ".size victim_" name ", .-victim_" name "\n.popsection\n")

// (As bytes: the assembler would take the shorter form.)
FUNCTION("nop5", ".byte 0x0f, 0x1f, 0x44, 0, 0\n mov %rdi, %rax\n add $1, %rax\n ret\n");
FUNCTION("push", "push %rbp\n mov %rsp, %rbp\n lea 1(%rdi), %rax\n pop %rbp\n ret\n");
FUNCTION("sub", "sub $0x18, %rsp\n lea 1(%rdi), %rax\n add $0x18, %rsp\n ret\n");

// Ten frames, the last of which is probed: "nested" without frame pointers, but with unwind information, and "framed" the other way
// round.
#define CFI(directive) "	.cfi_" directive "\n"
#define NESTED(name, to)                                                                                              \
	FUNCTION(name, CFI("startproc") "push %rbx\n" CFI("def_cfa_offset 16") CFI("offset %rbx, -16")                 \
		 "sub $32, %rsp\n" CFI("def_cfa_offset 48") "call " to "\n add $32, %rsp\n" CFI("def_cfa_offset 16") \
		 "pop %rbx\n" CFI("def_cfa_offset 8") "ret\n" CFI("endproc"))
#define FRAMED(name, to) FUNCTION(name, "push %rbp\n mov %rsp, %rbp\n sub $32, %rsp\n call " to "\n leave\n ret\n")
#define CHAIN(KIND, kind)                                                                                             \
	KIND(kind "_1", "victim_" kind);                                                                              \
	KIND(kind "_2", "victim_" kind "_1");                                                                         \
	KIND(kind "_3", "victim_" kind "_2");                                                                         \
	KIND(kind "_4", "victim_" kind "_3");                                                                         \
	KIND(kind "_5", "victim_" kind "_4");                                                                         \
	KIND(kind "_6", "victim_" kind "_5");                                                                         \
	KIND(kind "_7", "victim_" kind "_6");                                                                         \
	KIND(kind "_8", "victim_" kind "_7");                                                                         \
	KIND(kind "_9", "victim_" kind "_8")

FUNCTION("nested", CFI("startproc") ".byte 0x0f, 0x1f, 0x44, 0, 0\n lea 1(%rdi), %rax\n ret\n" CFI("endproc"));
FUNCTION("framed", "push %rbp\n mov %rsp, %rbp\n lea 1(%rdi), %rax\n pop %rbp\n ret\n");
CHAIN(NESTED, "nested");
CHAIN(FRAMED, "framed");

extern long victim_nop5(long), victim_push(long), victim_sub(long), victim_nested_9(long), victim_framed_9(long);

static struct {
	const char *name;
	long (*function)(long);
	long total;
} shapes[] = { { "nop5", victim_nop5 }, { "push", victim_push }, { "sub", victim_sub },
	     { "nested", victim_nested_9 }, { "framed", victim_framed_9 } };

// Nanoseconds, or -1 if the function's results are not what they must be.
static long run(long (*function)(long), long calls)
{
	long sum = 0, begin = nanoseconds(), took;

	for (long i = 0; i < calls; i++)
		sum += function(i);
	took = nanoseconds() - begin;
	return sum == calls * (calls + 1) / 2 ? took : -1;
}

static void *work(void *spin)
{
	volatile long x = 0;

	while (spin)
		x = victim_push(x);
	pause();
	return NULL;
}

int main(int argc, char **argv)
{
	int threads = argc > 2 ? atoi(argv[1]) : 1;
	char line[64], name[16];
	long calls, took;
	pthread_t handle;

	setvbuf(stdout, NULL, _IOLBF, 0);
	for (int i = 1; i < threads; i++)
		pthread_create(&handle, NULL, work, strcmp(argv[2], "spin") == 0 ? &handle : NULL);
	pin();
	puts("ready");
	while (fgets(line, sizeof(line), stdin)) {
		if (sscanf(line, "%15s %ld", name, &calls) != 2)
			return 2;
		for (unsigned i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
			if (strcmp(shapes[i].name, name) != 0)
				continue;
			took = run(shapes[i].function, calls);
			shapes[i].total += calls;
			printf("%ld %ld\n", took, shapes[i].total);
		}
	}
	return 0;
}
