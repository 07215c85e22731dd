// SPDX-License-Identifier: MIT OR Apache-2.0
// What goes through SSL_read and SSL_write of a process, with its text, to a perf buffer.
#include <linux/bpf.h>
#include <linux/ptrace.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include "tls_tool.h"

struct call {
	__u64 begin_ns, text;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 10240);
	__type(key, __u32);
	__type(value, struct call);
} calls SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct event);
} scratch SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERF_EVENT_ARRAY);
	__uint(key_size, 4);
	__uint(value_size, 4);
} events SEC(".maps");

SEC("uprobe")
int begin(struct pt_regs *ctx)
{
	__u32 tid = (__u32)bpf_get_current_pid_tgid();
	struct call call = { bpf_ktime_get_ns(), PT_REGS_PARM2(ctx) };

	bpf_map_update_elem(&calls, &tid, &call, BPF_ANY);
	return 0;
}

static __always_inline int end(struct pt_regs *ctx, int is_read)
{
	__u64 ids = bpf_get_current_pid_tgid();
	__u32 tid = (__u32)ids, zero = 0;
	struct call *call = bpf_map_lookup_elem(&calls, &tid);
	struct event *event = bpf_map_lookup_elem(&scratch, &zero);
	int bytes = PT_REGS_RC(ctx);
	__u64 copied;

	if (!call || !event)
		return 0;
	if (bytes > 0) {
		event->begin_ns = call->begin_ns;
		event->took_ns = bpf_ktime_get_ns() - call->begin_ns;
		event->pid = ids >> 32;
		event->tid = tid;
		event->uid = (__u32)bpf_get_current_uid_gid();
		event->bytes = bytes;
		event->is_read = is_read;
		bpf_get_current_comm(event->comm, sizeof(event->comm));
		copied = (__u32)bytes;
		asm volatile("" : "+r"(copied)); // the verifier is to see the next line
		if (copied > TEXT_BYTES)
			copied = TEXT_BYTES;
		if (bpf_probe_read_user(event->text, copied, (void *)call->text) == 0)
			bpf_perf_event_output(ctx, &events, BPF_F_CURRENT_CPU, event,
					      __builtin_offsetof(struct event, text) + copied);
	}
	bpf_map_delete_elem(&calls, &tid);
	return 0;
}

SEC("uretprobe")
int end_read(struct pt_regs *ctx)
{
	return end(ctx, 1);
}

SEC("uretprobe")
int end_write(struct pt_regs *ctx)
{
	return end(ctx, 0);
}

char LICENSE[] SEC("license") = "GPL";
