// SPDX-License-Identifier: MIT OR Apache-2.0
// Does what it is told, a line each, and says "done": `call N`, `thread N`, `fork N` and `vfork N` call getppid N times, the last
// three elsewhere; `library N` calls getpgid N times in a library that it loads then, its argument; `signal` raises one, whose
// handler calls getppid once; `exec` executes itself anew; `wait` is answered when a second has passed.
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static void call(long count)
{
	while (count-- > 0)
		getppid();
}

static void *in_a_thread(void *count)
{
	call((long)count);
	return NULL;
}

static void handle(int signal)
{
	(void)signal;
	getppid();
}

int main(int count, char **arguments)
{
	char line[64];

	if (count != 2)
		return 2;
	signal(SIGUSR1, handle);
	puts("ready");
	fflush(stdout);
	while (fgets(line, sizeof(line), stdin)) {
		char word[16];
		long times = 0;
		int status = 0;
		pthread_t thread;

		if (sscanf(line, "%15s %ld", word, &times) < 1)
			return 2;
		if (!strcmp(word, "call")) {
			call(times);
		} else if (!strcmp(word, "thread")) {
			if (pthread_create(&thread, NULL, in_a_thread, (void *)times) || pthread_join(thread, NULL))
				return 3;
		} else if (!strcmp(word, "fork") || !strcmp(word, "vfork")) {
			pid_t child = word[0] == 'f' ? fork() : vfork();

			if (!child) {
				call(times);
				_exit(7);
			}
			if (waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) != 7)
				return 4;
		} else if (!strcmp(word, "library")) {
			void *library = dlopen(arguments[1], RTLD_NOW);
			long (*call_there)(long) = library ? dlsym(library, "call_there") : NULL;

			if (!call_there || call_there(times) != times)
				return 5;
		} else if (!strcmp(word, "signal")) {
			raise(SIGUSR1);
		} else if (!strcmp(word, "exec")) {
			execv("/proc/self/exe", arguments);
			return 6;
		} else if (!strcmp(word, "wait")) {
			sleep(1);
		}
		puts("done");
		fflush(stdout);
	}
	return 0;
}
