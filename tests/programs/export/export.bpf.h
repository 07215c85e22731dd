// SPDX-License-Identifier: MIT OR Apache-2.0
#include <linux/bpf.h>
#include <linux/ptrace.h>
#include <stdbool.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#ifndef BPF_UPROBE
#define BPF_UPROBE BPF_KPROBE
#endif

#define COUNTERS(name, kind, entries, key_type) \
	struct { \
		__uint(type, BPF_MAP_TYPE_##kind); \
		__uint(max_entries, entries); \
		__type(key, key_type); \
		__type(value, __u64); \
	} name SEC(".maps")

static inline void add(void *map, const void *key, __u64 more)
{
	__u64 zero = 0, *count = bpf_map_lookup_elem(map, key);

	if (!count) {
		bpf_map_update_elem(map, key, &zero, BPF_NOEXIST);
		count = bpf_map_lookup_elem(map, key);
	}
	if (count)
		__sync_fetch_and_add(count, more);
}

char LICENSE[] SEC("license") = "GPL";
