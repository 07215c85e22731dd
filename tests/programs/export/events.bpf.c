// SPDX-License-Identifier: MIT OR Apache-2.0
// Records: of a perf event array, which are counted, and of a ring buffer, which are spans.
#include "export.bpf.h"

struct event {
	__u32 kind;
	char name[12];
};

struct span {
	__u64 trace[2], parent, id, at_ns, duration_ns;
	char name[16];
	__u32 kind;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERF_EVENT_ARRAY);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(__u32));
} events_total SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 64 * 1024);
} work_spans SEC(".maps");

SEC("uprobe/" VICTIM ":work")
int BPF_UPROBE(on_work, __u32 kind, __u64 size, const char *name)
{
	struct event event = { .kind = kind };
	struct span *span;

	bpf_probe_read_user_str(event.name, sizeof(event.name), name);
	bpf_perf_event_output(ctx, &events_total, BPF_F_CURRENT_CPU, &event, sizeof(event));
	span = bpf_ringbuf_reserve(&work_spans, sizeof(*span), 0);
	if (!span)
		return 0;
	__builtin_memset(span, 0, sizeof(*span));
	// (Kind 0 is of no trace.)
	span->trace[0] = kind;
	span->parent = kind ? 0x0807060504030201ULL : 0;
	span->id = kind ? size : 0;
	span->at_ns = bpf_ktime_get_ns();
	span->duration_ns = size;
	span->kind = kind;
	bpf_probe_read_user_str(span->name, sizeof(span->name), name);
	bpf_ringbuf_submit(span, 0);
	return 0;
}
