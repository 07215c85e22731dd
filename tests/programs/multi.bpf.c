// SPDX-License-Identifier: MIT OR Apache-2.0
// For links to many uprobes: how often each is hit, and at which function. Which one it is, the cookie says.
#include <linux/bpf.h>
#include <linux/ptrace.h>
#include <bpf/bpf_helpers.h>
#include "multi.h"

char LICENSE[] SEC("license") = "GPL";

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, PLACES_MAX);
	__type(key, __u32);
	__type(value, struct place);
} places SEC(".maps");

SEC("kprobe")
int at_place(struct pt_regs *context)
{
	__u32 which = bpf_get_attach_cookie(context) - 100;
	struct place *place = bpf_map_lookup_elem(&places, &which);

	if (place) {
		__sync_fetch_and_add(&place->hits, 1);
		place->function = bpf_get_func_ip(context);
	}
	return 0;
}
