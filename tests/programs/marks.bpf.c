// SPDX-License-Identifier: MIT OR Apache-2.0
// Statically defined probes: how often each is hit, and the arguments of the last hit. Which one it is, the cookie says.
#include <linux/bpf.h>
#include <linux/ptrace.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include <stdbool.h>
#include <bpf/usdt.bpf.h>
#include "marks.h"

char LICENSE[] SEC("license") = "GPL";

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MARKS_MAX);
	__type(key, __u32);
	__type(value, struct mark);
} marks SEC(".maps");

SEC("usdt")
int on_mark(struct pt_regs *context)
{
	__u32 which = bpf_usdt_cookie(context);
	struct mark *mark = bpf_map_lookup_elem(&marks, &which);

	if (!mark)
		return 0;
	__sync_fetch_and_add(&mark->hits, 1);
	mark->count = bpf_usdt_arg_cnt(context);
	for (int index = 0; index < ARGUMENTS_MAX; index++) {
		long value = 0;

		mark->arguments[index] = bpf_usdt_arg(context, index, &value) ? 0 : value;
	}
	return 0;
}
