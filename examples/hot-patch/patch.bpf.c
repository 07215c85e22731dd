// SPDX-License-Identifier: MIT OR Apache-2.0
// The patch of CVE-2014-0160: a heartbeat that says that its text is longer than what has arrived is discarded (RFC 6520, section
// 4). `discarded` counts them.
#include <linux/bpf.h>
#include "patch.h"
#include <bpf/bpf_helpers.h>

#define HEADER 3
#define PADDING 16
#define CONTINUE 0
#define DISCARD 1

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} discarded SEC(".maps");

SEC("uprobe")
int patch(struct ring3_heartbeat *ctx)
{
	struct record *record = ctx->record;
	struct bpf_dynptr data;
	unsigned char header[HEADER];
	__u32 zero = 0;
	__u64 *count;

	if (ring3_dynptr_from_slice(&record->data, 0, &data) || bpf_dynptr_read(header, HEADER, &data, 0, 0))
		return CONTINUE; // too short: the server itself discards it
	if (HEADER + (header[1] << 8 | header[2]) + PADDING <= record->length)
		return CONTINUE;
	count = bpf_map_lookup_elem(&discarded, &zero);
	if (count)
		__sync_fetch_and_add(count, 1);
	return DISCARD;
}

char _license[] SEC("license") = "Dual MIT/GPL";
