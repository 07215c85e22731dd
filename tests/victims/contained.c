// SPDX-License-Identifier: MIT OR Apache-2.0
// What containers run. For each line: `call N` calls functions of the program and of a library N times; `run PROGRAM` executes another
// program in a child and waits for it, `spawn PROGRAM` the same with the child in this process's memory until then; `threads N` has N new
// threads call them, one after the other, which then stay; `end` ends.
#define _GNU_SOURCE
#include <pthread.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#ifdef LIBRARY
int in_library(int x);
#else
static int in_library(int x) { return x; }
#endif

__attribute__((noinline, used)) int wanted(int x) { __asm__ volatile("" : "+r"(x)); return in_library(x) + 1; }

static void *in_thread(void *done)
{
	wanted(1);
	pthread_barrier_wait(done);
	pause();
	return NULL;
}

int main(int argc, char **argv)
{
	char line[256];

	if (argc > 1) {
		for (int n = atoi(argv[1]); n > 0; n--)
			wanted(n);
		return 0;
	}
	puts("ready");
	fflush(stdout);
	while (fgets(line, sizeof(line), stdin) && strncmp(line, "end", 3)) {
		line[strcspn(line, "\n")] = 0;
		if (!strncmp(line, "call ", 5)) {
			for (int n = atoi(line + 5); n > 0; n--)
				wanted(n);
			getppid();
			puts("called");
		} else if (!strncmp(line, "run ", 4)) {
			char *program[] = { line + 4, "7", NULL };
			pid_t child = fork();

			if (child == 0) {
				execv(program[0], program);
				_exit(1);
			}
			waitpid(child, NULL, 0);
			printf("ran %d\n", child);
		} else if (!strncmp(line, "spawn ", 6)) {
			char *program[] = { line + 6, "7", NULL };
			pid_t child;

			if (posix_spawn(&child, program[0], NULL, NULL, program, NULL) == 0)
				waitpid(child, NULL, 0);
			printf("ran %d\n", child);
		} else if (!strncmp(line, "threads ", 8)) {
			for (int n = atoi(line + 8); n > 0; n--) {
				pthread_barrier_t done;
				pthread_t thread;

				pthread_barrier_init(&done, NULL, 2);
				pthread_create(&thread, NULL, in_thread, &done);
				pthread_barrier_wait(&done);
			}
			puts("called");
		}
		fflush(stdout);
	}
	return 0;
}
