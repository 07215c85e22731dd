// SPDX-License-Identifier: MIT OR Apache-2.0
// Disables its time stamp counter, or takes its vDSO away, when it is told to, and calls `mark`: each line of input is a command, answered by a line. It ends
// with 7 at `end`. `counterless brief COMMAND` does one, says "hello", and ends with 4.
#define _GNU_SOURCE
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

__attribute__((noinline, noclone)) void mark(void)
{
	__asm__ volatile("" ::: "memory");
}

// Without the C library, which calls more than that.
static void say(const char *text)
{
	char line[64];
	unsigned length = 0;

	while (text[length])
		line[length] = text[length], length++;
	line[length++] = '\n';
	if (write(1, line, length) != length)
		_exit(3);
}

static int hear(char *line, unsigned room)
{
	unsigned used = 0;

	while (used + 1 < room && read(0, line + used, 1) == 1 && line[used] != '\n')
		used++;
	line[used] = 0;
	return used > 0;
}

static void *mark_in_thread(void *mode)
{
	if (mode && prctl(PR_SET_TSC, *(int *)mode))
		abort();
	mark();
	return NULL;
}

static void run_thread(int *mode)
{
	pthread_t thread;

	if (pthread_create(&thread, NULL, mark_in_thread, mode) || pthread_join(thread, NULL))
		abort();
}

static void run_child(void)
{
	int status = -1;
	pid_t child = fork();

	if (!child) {
		mark();
		_exit(5);
	}
	if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) != 5)
		abort();
}

// Of a child that borrows the memory.
static void set_in_vfork_child(int mode)
{
	int status = -1;
	pid_t child = vfork();

	if (!child) {
		prctl(PR_SET_TSC, mode);
		mark();
		_exit(5);
	}
	if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status) || WEXITSTATUS(status) != 5)
		abort();
}

// From now on whoever asks for the mode of the counter, or for the time, is killed.
static void forbid_to_ask(void)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_prctl, 1, 0),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clock_gettime, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = { sizeof(code) / sizeof(*code), code };

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
		abort();
}

// Moves the vDSO away from its data, unmaps it, or maps something else there.
static void take_vdso(const char *how)
{
	char line[512];
	unsigned long begin = 0, end = 0;
	FILE *maps = fopen("/proc/self/maps", "r");

	while (maps && fgets(line, sizeof(line), maps))
		if (strstr(line, "[vdso]"))
			sscanf(line, "%lx-%lx", &begin, &end);
	if (!begin)
		abort();
	fclose(maps);

	void *vdso = (void *)begin;
	unsigned long bytes = end - begin;
	void *room = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (!strcmp(how, "move") && mremap(vdso, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, room) != room)
		abort();
	if (!strcmp(how, "unmap") && munmap(vdso, bytes))
		abort();
	if (!strcmp(how, "cover") &&
	    mmap(vdso, bytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != vdso)
		abort();
}

static int set(int mode)
{
	return prctl(PR_SET_TSC, mode);
}

static void obey(const char *command)
{
	int disabled = PR_TSC_SIGSEGV;

	if (!strcmp(command, "mark"))
		mark();
	else if (!strcmp(command, "off") && set(PR_TSC_SIGSEGV))
		abort();
	else if (!strcmp(command, "on") && set(PR_TSC_ENABLE))
		abort();
	else if (!strcmp(command, "wrong") && set(3) != -1)
		abort();
	else if (!strcmp(command, "mode1") && prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT))
		abort();
	else if (!strcmp(command, "seccomp1") && syscall(SYS_seccomp, SECCOMP_SET_MODE_STRICT, 0, NULL))
		abort();
	else if (!strcmp(command, "filter"))
		forbid_to_ask();
	else if (!strcmp(command, "thread"))
		run_thread(NULL);
	else if (!strcmp(command, "thread off"))
		run_thread(&disabled);
	else if (!strcmp(command, "child"))
		run_child();
	else if (!strcmp(command, "vfork off"))
		set_in_vfork_child(PR_TSC_SIGSEGV);
	else if (!strcmp(command, "vfork on"))
		set_in_vfork_child(PR_TSC_ENABLE);
	else if (!strncmp(command, "vdso ", 5))
		take_vdso(command + 5);
	else if (!strcmp(command, "rdtsc"))
		__builtin_ia32_rdtsc();
}

int main(int argc, char **argv)
{
	char line[64];

	if (argc > 2) {
		obey(argv[2]);
		mark();
		say("hello");
		syscall(SYS_exit, 4);
	}
	say("ready");
	while (hear(line, sizeof(line)) && strcmp(line, "end")) {
		obey(line);
		say("done");
	}
	syscall(SYS_exit, 7);
}
