// SPDX-License-Identifier: MIT OR Apache-2.0
// The programs whose cost is measured: one that does nothing, one that counts by process, one that counts by CPU, one that takes
// a stack of ten frames, and one that is not about this process.
#include <linux/bpf.h>
#include <linux/ptrace.h>
#include <bpf/bpf_helpers.h>

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 10240);
	__type(key, __u32);
	__type(value, __u64);
} counts SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} cells SEC(".maps");

SEC("uprobe")
int empty(struct pt_regs *ctx)
{
	return 0;
}

static __always_inline int count(void)
{
	__u32 pid = bpf_get_current_pid_tgid() >> 32;
	__u64 *value = bpf_map_lookup_elem(&counts, &pid);

	if (!value) {
		__u64 zero = 0;
		bpf_map_update_elem(&counts, &pid, &zero, BPF_NOEXIST);
		value = bpf_map_lookup_elem(&counts, &pid);
		if (!value)
			return 0;
	}
	__sync_fetch_and_add(value, 1);
	return 0;
}

SEC("uprobe")
int counting(struct pt_regs *ctx)
{
	return count();
}

SEC("uprobe")
int per_cpu(struct pt_regs *ctx)
{
	__u32 zero = 0;
	__u64 *cell = bpf_map_lookup_elem(&cells, &zero);

	if (cell)
		*cell += 1;
	return 0;
}

// Counts by CPU the stacks that are whole.
SEC("uprobe")
int stack(struct pt_regs *ctx)
{
	__u64 frames[10];
	__u32 zero = 0;
	__u64 *cell;

	if (bpf_get_stack(ctx, frames, sizeof(frames), BPF_F_USER_STACK) != sizeof(frames))
		return 0;
	cell = bpf_map_lookup_elem(&cells, &zero);
	if (cell)
		*cell += 1;
	return 0;
}

SEC("uprobe")
int filtered(struct pt_regs *ctx)
{
	if (bpf_get_current_pid_tgid() >> 32 != 1)
		return 0;
	return count();
}

char LICENSE[] SEC("license") = "GPL";
