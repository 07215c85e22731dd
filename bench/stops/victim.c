// SPDX-License-Identifier: MIT OR Apache-2.0
// A process with many functions and threads, that sees when it is stopped.
//
//   stops_victim THREADS
//
// One thread looks at the clock all the time, the others wait. Prints "ready OFFSET BYTES": where in its file the functions begin, one
// behind the other, and how many bytes each has. For each line of input it prints the longest time since the line before in which the
// first thread did not run, ns.
#define _GNU_SOURCE
#include <link.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define FUNCTION_BYTES 32
#define LOOKS 1000

__asm__(".pushsection .text\n.p2align 5\nfunctions:\n"
	".rept 10000\n.p2align 5\n push %rbp\n mov %rsp, %rbp\n lea 1(%rdi), %rax\n pop %rbp\n ret\n.endr\n.popsection\n");
extern char functions[];

static unsigned long long now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec * 1000000000ull + time.tv_nsec;
}

static void *wait_for_ever(void *unused)
{
	(void)unused;
	for (;;)
		pause();
}

// Segments of programs are at the same distance in the file and in memory, but for the first address.
static int find_base(struct dl_phdr_info *info, size_t bytes, void *base)
{
	(void)bytes;
	*(unsigned long *)base = info->dlpi_addr;
	return 1; // the first one is the program
}

int main(int argc, char **argv)
{
	struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
	unsigned long long last, longest = 0;
	unsigned long base = 0;
	pthread_attr_t small;
	char line[16];

	pthread_attr_init(&small);
	pthread_attr_setstacksize(&small, 64 << 10);
	for (int threads = argc > 1 ? atoi(argv[1]) : 1; threads > 1; threads--) {
		pthread_t thread;

		if (pthread_create(&thread, &small, wait_for_ever, NULL))
			return 1;
	}
	setvbuf(stdout, NULL, _IOLBF, 0);
	setvbuf(stdin, NULL, _IONBF, 0);
	dl_iterate_phdr(find_base, &base);
	printf("ready %lu %d\n", (unsigned long)functions - base, FUNCTION_BYTES);
	last = now();
	for (unsigned long looks = 0;; looks++) {
		unsigned long long time = now();

		if (time - last > longest)
			longest = time - last;
		last = time;
		if (looks % LOOKS || !poll(&input, 1, 0))
			continue;
		if (!fgets(line, sizeof(line), stdin))
			return 0;
		printf("%llu\n", longest);
		longest = 0;
		last = now();
	}
}
