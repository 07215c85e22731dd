// SPDX-License-Identifier: MIT OR Apache-2.0
// Filters that the program gives itself.
#include "check.h"
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/wait.h>

static volatile int trapped;

static void trap(int number, siginfo_t *info, void *context)
{
	EQUAL(number, SIGSYS);
	EQUAL(info->si_code, 1); // SYS_SECCOMP
	EQUAL(info->si_syscall, SYS_getpgid);
	trapped++;
	(void)context;
}

#define OF(field) offsetof(struct seccomp_data, field)

// getsid fails with 4095, getpgid raises SIGSYS, fchdir kills.
static void filtered(void)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, OF(arch)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AUDIT_ARCH_X86_64, 1, 0),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, OF(nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getsid, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | 4095),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getpgid, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_fchdir, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = { sizeof(code) / sizeof(*code), code };
	struct sigaction action = { .sa_sigaction = trap, .sa_flags = SA_SIGINFO };

	EQUAL(sigaction(SIGSYS, &action, NULL), 0);
	EQUAL(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
	EQUAL(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), 0);
	for (int i = 0; i < 20; i++) {
		EQUAL(RAW(SYS_getsid, 0), -4095);
		RAW(SYS_getpgid, 0);
		EQUAL(trapped, i + 1);
		EQUAL(RAW(SYS_getppid), getppid());
	}
}

static int status_of(pid_t child)
{
	int status = -1;

	EQUAL(waitpid(child, &status, 0), child);
	return status;
}

int main(void)
{
	// Nothing but read, write, exit and sigreturn, or it is killed.
	pid_t child = fork();
	if (!child) {
		RAW(SYS_prctl, PR_SET_SECCOMP, SECCOMP_MODE_STRICT);
		for (int i = 0; i < 100; i++)
			if (RAW(SYS_write, 1, NULL, 0) < 0)
				RAW(SYS_exit, 2);
		RAW(SYS_exit, 33);
	}
	EQUAL(WEXITSTATUS(status_of(child)), 33);
	child = fork();
	if (!child) {
		RAW(SYS_prctl, PR_SET_SECCOMP, SECCOMP_MODE_STRICT);
		RAW(SYS_getpid);
		RAW(SYS_exit, 34);
	}
	EQUAL(WTERMSIG(status_of(child)), SIGKILL);
	filtered();
	child = fork();
	if (!child) {
		RAW(SYS_fchdir, -1);
		_exit(1);
	}
	EQUAL(WTERMSIG(status_of(child)), SIGSYS);
	return faults != 0;
}
