// SPDX-License-Identifier: MIT OR Apache-2.0
// Sends signals: which ones and to whom says the victim (tests/victims/signalled.c).
#include <linux/bpf.h>
#include <linux/ptrace.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include "tell.bpf.h"

enum { TO_PROCESS, TO_THREAD, FROM_RETURN };

// Of functions, one runs at a time; what a handler's call changes does not matter any more.
long at_return;

SEC("uprobe")
int BPF_KPROBE(begins, long signal, long how, long times, char *text)
{
	char read[4];

	// Who reads memory has the agent handle faults.
	bpf_probe_read_user(read, sizeof(read), text);
	for (int i = 0; i < 3; i++) {
		if (i >= times)
			break;
		if (how == TO_PROCESS)
			TELL("process", bpf_send_signal(signal));
		else if (how == TO_THREAD)
			TELL("thread", bpf_send_signal_thread(signal));
		else
			at_return = signal;
	}
	return 0;
}

SEC("uretprobe")
int ends(void *ctx)
{
	if (at_return)
		TELL("return", bpf_send_signal(at_return));
	at_return = 0;
	return 0;
}

struct call {
	unsigned long long common;
	long number;
	long first;
};

static __always_inline int is_victim(void)
{
	char comm[16];

	bpf_get_current_comm(comm, sizeof(comm));
	return comm[0] == 's' && comm[1] == 'i' && comm[2] == 'g' && comm[3] == 'n' && comm[8] == 'd';
}

SEC("tracepoint/syscalls/sys_enter_getpgid")
int call_begins(struct call *call)
{
	if (call->first == 1 << 30 && is_victim())
		TELL("call begins", bpf_send_signal(10));
	return 0;
}

SEC("tracepoint/syscalls/sys_exit_getpgid")
int call_ends(struct call *call)
{
	if (is_victim())
		TELL("call ends", bpf_send_signal_thread(10));
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
