// SPDX-License-Identifier: MIT OR Apache-2.0
// Children in all the ways there are, and what they end with; a program that becomes itself again and again.
#include "check.h"
#include <fcntl.h>
#include <linux/sched.h>
#include <pthread.h>
#include <sched.h>
#include <spawn.h>
#include <sys/wait.h>

extern char **environ;

static int ended(pid_t child)
{
	int status = -1;

	EQUAL(waitpid(child, &status, 0), child);
	return status;
}

static void by_fork(void)
{
	pid_t self = getpid();

	for (int i = 0; i < 50; i++) {
		pid_t child = i % 2 ? fork() : (pid_t)RAW(SYS_fork);

		if (!child)
			_exit(RAW(SYS_getppid) == self && RAW(SYS_getpid) != self ? i : 100);
		CHECK(child > 0 && child != self);
		EQUAL(WEXITSTATUS(ended(child)), i);
	}
	// Grandchildren.
	for (int i = 0; i < 10; i++) {
		pid_t child = fork();

		if (!child) {
			pid_t grandchild = fork();
			if (!grandchild)
				_exit(i);
			_exit(WEXITSTATUS(ended(grandchild)) + 1);
		}
		EQUAL(WEXITSTATUS(ended(child)), i + 1);
	}
}

static void by_clone(void)
{
	for (int i = 0; i < 20; i++) {
		struct clone_args arguments = { .exit_signal = SIGCHLD };
		pid_t child = i % 2 ? RAW(SYS_clone, SIGCHLD, 0, 0, 0, 0) : RAW(SYS_clone3, &arguments, sizeof(arguments));

		if (!child)
			RAW(SYS_exit_group, i);
		EQUAL(WEXITSTATUS(ended(child)), i);
	}
}

static void by_vfork(void)
{
	char *const arguments[] = { "true", NULL }, *const missing[] = { "missing", NULL };
	volatile int written;

	for (int i = 0; i < 200; i++) {
		written = 0;
		pid_t child = vfork();
		if (!child) {
			// What it writes is its parent's.
			written = i + 1;
			_exit(i);
		}
		EQUAL(written, i + 1);
		EQUAL(WEXITSTATUS(ended(child)), i);
	}
	for (volatile int i = 0; i < 20; i++) {
		pid_t child = vfork();
		if (!child) {
			execve("/bin/true", arguments, environ);
			_exit(1);
		}
		EQUAL(ended(child), 0);
		child = vfork();
		if (!child) {
			execve("/nowhere/missing", missing, environ);
			written = errno;
			_exit(3);
		}
		EQUAL(written, ENOENT);
		EQUAL(WEXITSTATUS(ended(child)), 3);
	}
	// The child's result of vfork in registers only, by its own site.
	for (int i = 0; i < 20; i++) {
		long result;

		__asm__ volatile("syscall; test %%eax, %%eax; jnz 1f; mov $60, %%eax; mov $5, %%edi; syscall; 1:"
				 : "=a"(result)
				 : "0"((long)SYS_vfork)
				 : "rcx", "r11", "rdi", "memory");
		CHECK(result > 0);
		EQUAL(WEXITSTATUS(ended(result)), 5);
	}
}

static void by_libc(void)
{
	char *const arguments[] = { "sh", "-c", "exit 9", NULL };
	char line[64] = "";
	pid_t child;

	for (int i = 0; i < 10; i++) {
		EQUAL(posix_spawn(&child, "/bin/sh", NULL, NULL, arguments, environ), 0);
		EQUAL(WEXITSTATUS(ended(child)), 9);
		EQUAL(posix_spawn(&child, "/nowhere/missing", NULL, NULL, arguments, environ), ENOENT);
		EQUAL(WEXITSTATUS(system("exit 4")), 4);
		FILE *output = popen("echo some words", "r");
		CHECK(output && fgets(line, sizeof(line), output));
		CHECK(!strcmp(line, "some words\n"));
		EQUAL(pclose(output), 0);
	}
}

static void by_signals(void)
{
	for (int i = 0; i < 5; i++) {
		pid_t child = fork();
		if (!child)
			abort();
		EQUAL(WTERMSIG(ended(child)), SIGABRT);
		child = fork();
		if (!child) {
			RAW(SYS_kill, getpid(), SIGKILL);
			_exit(1);
		}
		EQUAL(WTERMSIG(ended(child)), SIGKILL);
		child = fork();
		if (!child)
			*(volatile int *)(long)getpid() = 1;
		EQUAL(WTERMSIG(ended(child)), SIGSEGV);
	}
}

static char *rest;
static volatile int created;

static void *become(void *unused)
{
	char *const arguments[] = { "exe", rest, NULL };

	// (Where its creator is then decides what it has called.)
	while (!created)
		__builtin_ia32_pause();
	execve("/proc/self/exe", arguments, environ);
	return unused;
}

// Itself, with one round less; at times by another thread, at times by a descriptor.
static int go_on(long rounds)
{
	char text[24];
	char *const arguments[] = { "exe", text, NULL };
	pthread_t thread;

	snprintf(text, sizeof(text), "%ld", rounds - 1);
	// (The process is the same all the time.)
	EQUAL(getpid(), atol(getenv("SELF")));
	if (faults)
		return 1;
	rest = text;
	if (rounds % 5 == 0) {
		EQUAL(pthread_create(&thread, NULL, become, NULL), 0);
		for (created = 1;;)
			__builtin_ia32_pause();
	}
	created = 1;
	if (rounds % 5 == 1)
		syscall(SYS_execveat, AT_FDCWD, "/proc/self/exe", arguments, environ, 0);
	if (rounds % 5 == 2)
		fexecve(open("/proc/self/exe", O_RDONLY | O_CLOEXEC), arguments, environ);
	EQUAL(execve("/nowhere/missing", arguments, environ), -1);
	become(NULL);
	return 1;
}

int main(int argc, char **argv)
{
	long rounds = argc > 1 ? atol(argv[1]) : -1;
	char text[24];

	if (rounds == 0)
		return 77;
	if (rounds > 0)
		return go_on(rounds);
	by_fork();
	by_clone();
	by_vfork();
	by_libc();
	by_signals();
	pid_t child = fork();
	if (!child) {
		snprintf(text, sizeof(text), "%d", getpid());
		setenv("SELF", text, 1);
		return go_on(50);
	}
	EQUAL(WEXITSTATUS(ended(child)), 77);
	return faults != 0;
}
