// SPDX-License-Identifier: MIT OR Apache-2.0
// Tells the stack of a function whose first argument is what the process knows of it.
#include <linux/bpf.h>
#include <linux/ptrace.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include "stacks.h"

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 22);
} told SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_STACK_TRACE);
	__uint(key_size, 4);
	__uint(value_size, FRAMES * 8);
	__uint(max_entries, 4096);
} traces SEC(".maps");

unsigned long long lost, returned;

SEC("uprobe")
int entered(struct pt_regs *ctx)
{
	struct told *to = bpf_ringbuf_reserve(&told, sizeof(*to), 0);

	if (!to) {
		__sync_fetch_and_add(&lost, 1);
		return 0;
	}
	bpf_probe_read_user(&to->known, sizeof(to->known), (const void *)PT_REGS_PARM1(ctx));
	to->bytes = bpf_get_stack(ctx, to->frames, sizeof(to->frames), BPF_F_USER_STACK);
	to->id = bpf_get_stackid(ctx, &traces, BPF_F_USER_STACK);
	bpf_ringbuf_submit(to, 0);
	return 0;
}

// Also takes a stack, whose frames are of no interest.
SEC("uprobe")
int left(struct pt_regs *ctx)
{
	unsigned long frames[8];

	if (bpf_get_stack(ctx, frames, sizeof(frames), BPF_F_USER_STACK) > 0)
		__sync_fetch_and_add(&returned, 1);
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
