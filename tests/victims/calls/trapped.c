// SPDX-License-Identifier: MIT OR Apache-2.0
// A program that answers calls itself which its filter traps, as sandboxes do; and code that it has written.
#include "written.h"
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <ucontext.h>

// SYS_SECCOMP (include/uapi/asm-generic/siginfo.h)
#define REFUSED 1

static volatile int trapped;

static void answer(int number, siginfo_t *info, void *context)
{
	EQUAL(number, SIGSYS);
	EQUAL(info->si_code, REFUSED);
	EQUAL(info->si_syscall, SYS_getpgid);
	((ucontext_t *)context)->uc_mcontext.gregs[REG_RAX] = 4711;
	trapped++;
}

int main(void)
{
	struct sigaction own = { .sa_sigaction = answer, .sa_flags = SA_SIGINFO | SA_NODEFER }, is;
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getpgid, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = { sizeof(filter) / sizeof(*filter), filter };

	write_code();
	for (int i = 0; i < 100; i++)
		EQUAL(call(SYS_getppid), getppid());
	EQUAL(sigaction(SIGSYS, &own, NULL), 0);
	EQUAL(call(SYS_getppid), getppid());
	EQUAL(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
	EQUAL(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), 0);
	for (int i = 0; i < 100; i++) {
		EQUAL(RAW(SYS_getpgid, 0), 4711);
		EQUAL(call(SYS_getpgid, 0), 4711);
		EQUAL(call(SYS_getsid, 0), getsid(0));
		EQUAL(RAW(SYS_getppid), getppid());
	}
	EQUAL(trapped, 200);
	EQUAL(sigaction(SIGSYS, NULL, &is), 0);
	CHECK(is.sa_sigaction == answer);
	return faults != 0;
}
