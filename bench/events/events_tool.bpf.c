// SPDX-License-Identifier: MIT OR Apache-2.0
// Programs that send an event of 64 bytes to the tool: by a perf buffer, or by a ring buffer.
#include <linux/bpf.h>
#include <linux/ptrace.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

struct {
	__uint(type, BPF_MAP_TYPE_PERF_EVENT_ARRAY);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(__u32));
} samples SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 20);
} records SEC(".maps");

// When the event was, ns (CLOCK_MONOTONIC), and what else tools tell of one.
struct event {
	__u64 when;
	__u64 who;
	__u64 text[6];
};

SEC("uprobe")
int perf(struct pt_regs *ctx)
{
	struct event event = {};

	event.when = PT_REGS_PARM1(ctx);
	event.who = bpf_get_current_pid_tgid();
	bpf_perf_event_output(ctx, &samples, BPF_F_CURRENT_CPU, &event, sizeof(event));
	return 0;
}

SEC("uprobe")
int ring(struct pt_regs *ctx)
{
	struct event *event = bpf_ringbuf_reserve(&records, sizeof(*event), 0);

	if (!event)
		return 0;
	__builtin_memset(event, 0, sizeof(*event));
	event->when = PT_REGS_PARM1(ctx);
	event->who = bpf_get_current_pid_tgid();
	bpf_ringbuf_submit(event, 0);
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
