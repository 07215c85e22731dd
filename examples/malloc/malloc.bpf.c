// SPDX-License-Identifier: MIT OR Apache-2.0
// Counts calls and returns of probed functions, by process and probe.
#include <linux/bpf.h>
#include <linux/ptrace.h>
#include <bpf/bpf_helpers.h>

struct key {
	__u32 pid;
	__u32 probe;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 10240);
	__type(key, struct key);
	__type(value, __u64);
} counts SEC(".maps");

static __always_inline int count(void *ctx)
{
	struct key key = {
		.pid = bpf_get_current_pid_tgid() >> 32,
		.probe = bpf_get_attach_cookie(ctx),
	};
	__u64 *value = bpf_map_lookup_elem(&counts, &key);
	if (!value) {
		__u64 zero = 0;
		bpf_map_update_elem(&counts, &key, &zero, BPF_NOEXIST);
		value = bpf_map_lookup_elem(&counts, &key);
		if (!value)
			return 0;
	}
	__sync_fetch_and_add(value, 1);
	return 0;
}

SEC("uprobe")
int on_entry(struct pt_regs *ctx)
{
	return count(ctx);
}

SEC("uretprobe")
int on_return(struct pt_regs *ctx)
{
	return count(ctx);
}

char LICENSE[] SEC("license") = "GPL";
