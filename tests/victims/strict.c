// SPDX-License-Identifier: MIT OR Apache-2.0
// Filters its own system calls when it is told to, and does some work: each line of input is a command, answered by a line.
// `list` lets only what it needs itself be called, `errno` answers the rest by an error, `mode1` is SECCOMP_MODE_STRICT, `deny`
// kills for what tracers like to call, `ids` for gettid too, `thread` is `deny` in another thread alone. It ends with 7 at `end`, with all its threads at
// `quit`.
#define _GNU_SOURCE
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define COUNT(list) (sizeof(list) / sizeof(*(list)))

__attribute__((noinline, noclone)) unsigned long work(unsigned long x)
{
	__asm__ volatile("" : "+r"(x));
	return x + 1;
}

static void filter(const int *numbers, unsigned count, unsigned listed, unsigned other)
{
	struct sock_filter code[64] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AUDIT_ARCH_X86_64, 1, 0),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
	};
	unsigned used = 4;

	for (unsigned i = 0; i < count; i++)
		code[used++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, numbers[i], count - i, 0);
	code[used++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, other);
	code[used++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, listed);
	struct sock_fprog program = { used, code };

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
		abort();
}

static const int needed[] = { SYS_read, SYS_write, SYS_exit, SYS_exit_group, SYS_rt_sigreturn, SYS_clone, SYS_fork, SYS_wait4,
			      SYS_set_robust_list, SYS_clock_nanosleep };
static const int tracers[] = { SYS_restart_syscall, SYS_process_vm_readv, SYS_process_vm_writev, SYS_tkill, SYS_nanosleep,
			       SYS_futex, SYS_sigaltstack, SYS_getcpu, SYS_getuid, SYS_gettid };
#define BUT_IDS (COUNT(tracers) - 1)

static void install(const char *how)
{
	if (!strcmp(how, "list"))
		filter(needed, COUNT(needed), SECCOMP_RET_ALLOW, SECCOMP_RET_KILL_PROCESS);
	else if (!strcmp(how, "errno"))
		filter(needed, COUNT(needed), SECCOMP_RET_ALLOW, SECCOMP_RET_ERRNO | 38);
	else if (!strcmp(how, "deny"))
		filter(tracers, BUT_IDS, SECCOMP_RET_KILL_PROCESS, SECCOMP_RET_ALLOW);
	else if (!strcmp(how, "ids"))
		filter(tracers, COUNT(tracers), SECCOMP_RET_KILL_PROCESS, SECCOMP_RET_ALLOW);
	else if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT))
		abort();
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

static int hear(int fd, char *line, unsigned room)
{
	unsigned used = 0;

	while (used + 1 < room && read(fd, line + used, 1) == 1 && line[used] != '\n')
		used++;
	line[used] = 0;
	return used > 0;
}

static unsigned long work_much(void)
{
	unsigned long x = 0;

	for (int i = 0; i < 1000; i++)
		x = work(x);
	return x;
}

static int to_thread[2], from_thread[2];

static void *body(void *unused)
{
	char line[8];

	install("deny");
	while (hear(to_thread[0], line, sizeof(line)) && write(from_thread[1], work_much() == 1000 ? "+" : "-", 1) == 1)
		;
	return unused;
}

static void do_in_child(void)
{
	int status = -1;
	// (`fork` of the C library has more to call.)
	long child = syscall(SYS_fork);

	if (!child)
		syscall(SYS_exit_group, work_much() == 1000 ? 5 : 6);
	if (child < 0 || wait4(child, &status, 0, NULL) != child)
		say("no child");
	else
		say(WIFEXITED(status) && WEXITSTATUS(status) == 5 ? "child worked" : "child died");
}

int main(int argc, char **argv)
{
	struct timespec second = { 1, 0 };
	char line[64];

	if (argc > 1)
		install(argv[1]);
	say("ready");
	while (hear(0, line, sizeof(line))) {
		if (!strcmp(line, "work")) {
			say(work_much() == 1000 ? "worked" : "wrong");
		} else if (!strcmp(line, "sleep")) {
			say("sleeps");
			say(clock_nanosleep(CLOCK_MONOTONIC, 0, &second, NULL) ? "woken" : "slept");
		} else if (!strcmp(line, "fork")) {
			do_in_child();
		} else if (!strcmp(line, "thread")) {
			pthread_t thread;
			if (pipe(to_thread) || pipe(from_thread) || pthread_create(&thread, NULL, body, NULL))
				return 4;
			say("has a thread");
		} else if (!strcmp(line, "there")) {
			char answer;
			if (write(to_thread[1], "x\n", 2) != 2 || read(from_thread[0], &answer, 1) != 1)
				return 5;
			say(answer == '+' ? "worked" : "wrong");
		} else if (!strcmp(line, "exec")) {
			char *arguments[] = { argv[0], NULL };
			execv("/proc/self/exe", arguments);
			return 6;
		} else if (!strcmp(line, "end")) {
			syscall(SYS_exit, 7);
		} else if (!strcmp(line, "quit")) {
			syscall(SYS_exit_group, 7);
		} else {
			install(line);
			say("filtered");
		}
	}
	return 0;
}
