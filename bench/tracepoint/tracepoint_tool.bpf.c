// SPDX-License-Identifier: MIT OR Apache-2.0
// Programs for the event of the victim: one that does nothing, and one that records it. The victim's event has its arguments where
// its function has them.
#include <stdbool.h>
#include <linux/bpf.h>
#include <linux/ptrace.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <bpf/usdt.bpf.h>
#include "tracepoint_tool.h"

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 8 << 20);
} records SEC(".maps");

unsigned long long lost;

SEC("uprobe")
int empty(struct pt_regs *ctx)
{
	return 0;
}

// (The reader looks by itself: nobody is woken.)
SEC("uprobe")
int record(struct pt_regs *ctx)
{
	struct record *record = bpf_ringbuf_reserve(&records, sizeof(*record), 0);

	if (!record) {
		__sync_fetch_and_add(&lost, 1);
		return 0;
	}
	record->when = bpf_ktime_get_ns();
	record->who = bpf_get_current_pid_tgid();
	record->id = PT_REGS_PARM1(ctx);
	record->number = PT_REGS_PARM2(ctx);
	bpf_probe_read_user_str(record->name, sizeof(record->name), (void *)PT_REGS_PARM3(ctx));
	bpf_ringbuf_submit(record, BPF_RB_NO_WAKEUP);
	return 0;
}

// The parts of it, to see what each costs.
SEC("uprobe")
int reserved(struct pt_regs *ctx)
{
	struct record *record = bpf_ringbuf_reserve(&records, sizeof(*record), 0);

	if (!record) {
		__sync_fetch_and_add(&lost, 1);
		return 0;
	}
	bpf_ringbuf_submit(record, BPF_RB_NO_WAKEUP);
	return 0;
}

unsigned long long seen;

SEC("uprobe")
int timed(struct pt_regs *ctx)
{
	seen = bpf_ktime_get_ns();
	return 0;
}

SEC("uprobe")
int named(struct pt_regs *ctx)
{
	seen = bpf_get_current_pid_tgid();
	return 0;
}

char text[NAME_BYTES];

SEC("uprobe")
int read(struct pt_regs *ctx)
{
	bpf_probe_read_user_str(text, sizeof(text), (void *)PT_REGS_PARM3(ctx));
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
