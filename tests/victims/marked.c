// SPDX-License-Identifier: MIT OR Apache-2.0
// Statically defined probes (USDT), written by hand as SystemTap's <sys/sdt.h> would: notes say where they are and where their
// arguments lie, and a semaphore keeps the arguments from being made while nobody listens.
//
// Of each line of input a line of output tells what came of it. With -DLIBRARY it is a library that the victim opens.
#define NOTE(name, semaphore, arguments) \
	".pushsection .note.stapsdt,\"\",\"note\"\n" \
	".balign 4\n" \
	".4byte 992f-991f, 994f-993f, 3\n" \
	"991: .asciz \"stapsdt\"\n" \
	"992: .balign 4\n" \
	"993: .8byte 990b, _.stapsdt.base, " semaphore "\n" \
	".asciz \"ring3\"\n" \
	".asciz \"" name "\"\n" \
	".asciz \"" arguments "\"\n" \
	"994: .balign 4\n" \
	".popsection\n" \
	".ifndef _.stapsdt.base\n" \
	".pushsection .stapsdt.base,\"aG\",\"progbits\",.stapsdt.base,comdat\n" \
	".weak _.stapsdt.base\n" \
	".hidden _.stapsdt.base\n" \
	"_.stapsdt.base: .space 1\n" \
	".size _.stapsdt.base, 1\n" \
	".popsection\n" \
	".endif\n"
#define PROBE(name, semaphore, arguments, ...) \
	__asm__ volatile("990: nop\n" NOTE(name, semaphore, arguments) :: __VA_ARGS__)

#ifdef LIBRARY

__attribute__((section(".probes"), visibility("hidden"))) volatile unsigned short inner_semaphore;

int inner(int value)
{
	if (!inner_semaphore)
		return 0;
	PROBE("inner", "inner_semaphore", "-4@%[value] -4@$7", [value] "r"(value));
	return inner_semaphore;
}

#else

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

__attribute__((section(".probes"))) volatile unsigned short guarded_semaphore, shared_semaphore;

struct memory {
	short small;
	unsigned char byte;
	long table[8];
};

// Every form of argument: constants, registers, and memory of each size and sign at a distance from a register.
__attribute__((noipa)) static int guarded(int value, struct memory *memory)
{
	if (!guarded_semaphore)
		return 0;
	PROBE("guarded", "guarded_semaphore", "-4@%k[value] 8@%[memory] -2@%c[small](%[memory]) 1@%c[byte](%[memory]) -8@$-5 "
	      "8@%c[third](%[memory])",
	      [value] "r"(value), [memory] "r"(memory), [small] "i"(__builtin_offsetof(struct memory, small)),
	      [byte] "i"(__builtin_offsetof(struct memory, byte)), [third] "i"(__builtin_offsetof(struct memory, table[3])));
	return guarded_semaphore;
}

// Without a semaphore, and with one that two places share.
__attribute__((noipa)) static int open_to_all(int value)
{
	PROBE("open", "0", "-4@%k[value]", [value] "r"(value));
	return value;
}

__attribute__((noipa)) static int shared(int value)
{
	if (!shared_semaphore)
		return 0;
	if (value & 1)
		PROBE("shared", "shared_semaphore", "-4@%k[value]", [value] "r"(value));
	else
		PROBE("shared", "shared_semaphore", "-4@$-1", [value] "r"(value));
	return shared_semaphore;
}

// The shortest place that there is: a nop and a ret, with another function's first byte behind them.
int brief(void);
__asm__(".text\n.balign 16\n.globl brief\n.type brief, @function\nbrief:\n990: nop\n" NOTE("brief", "0", "") "ret\n"
	".size brief, .-brief\n.type follower, @function\nfollower: ret\n.size follower, .-follower\n");

// A place where no probe can be: a breakpoint is there already. Nothing comes by.
void barred(void);
__asm__(".text\n.globl barred\n.type barred, @function\nbarred:\n990: int3\n" NOTE("barred", "0", "") "ret\n"
	".size barred, .-barred\n");

int main(int argc, char **argv)
{
	void *library = NULL;
	int (*inner)(int) = NULL;
	struct memory memory = { -3, 200, { 0, 0, 0, 1L << 40 } };
	char line[256], word[256];

	setvbuf(stdout, NULL, _IOLBF, 0);
	puts("ready");
	while (fgets(line, sizeof(line), stdin)) {
		int rounds = 0, seen = 0;

		if (sscanf(line, "%255s %d", word, &rounds) < 1)
			continue;
		if (!strcmp(word, "semaphores")) {
			printf("%hu %hu\n", guarded_semaphore, shared_semaphore);
		} else if (!strcmp(word, "guarded")) {
			for (int i = 0; i < rounds; i++)
				seen += guarded(i, &memory);
			printf("%d\n", seen);
		} else if (!strcmp(word, "shared")) {
			for (int i = 0; i < rounds; i++)
				seen += shared(i);
			printf("%d\n", seen);
		} else if (!strcmp(word, "open")) {
			for (int i = 0; i < rounds; i++)
				seen += open_to_all(1);
			printf("%d\n", seen);
		} else if (!strcmp(word, "brief")) {
			for (int i = 0; i < rounds; i++)
				brief();
			printf("%d\n", rounds);
		} else if (!strcmp(word, "load") && argc > 1) {
			library = dlopen(argv[1], RTLD_NOW);
			inner = library ? (int (*)(int))dlsym(library, "inner") : NULL;
			puts(inner ? "loaded" : dlerror());
		} else if (!strcmp(word, "inner") && inner) {
			for (int i = 0; i < rounds; i++)
				seen += inner(i);
			printf("%d\n", seen);
		} else if (!strcmp(word, "unload") && library) {
			dlclose(library);
			library = NULL;
			inner = NULL;
			puts("unloaded");
		} else if (!strcmp(word, "fork")) {
			pid_t child = fork();

			if (child == 0) {
				for (int i = 0; i < rounds; i++)
					seen += guarded(i, &memory);
				printf("%d\n", seen);
				// The child answers from now on, until it hears "end".
				continue;
			}
			waitpid(child, NULL, 0);
			puts("back");
		} else if (!strcmp(word, "end")) {
			exit(0);
		} else {
			puts("what?");
		}
	}
	return 0;
}
#endif
