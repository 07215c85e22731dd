// SPDX-License-Identifier: MIT OR Apache-2.0
// Reads clocks.
#include <linux/bpf.h>
#include <linux/ptrace.h>
#include <bpf/bpf_helpers.h>

__u64 times[3], jiffies, runs, calls;

SEC("uprobe")
int look(struct pt_regs *ctx)
{
	times[0] = bpf_ktime_get_ns();
	times[1] = bpf_ktime_get_boot_ns();
	times[2] = bpf_ktime_get_tai_ns();
	jiffies = bpf_jiffies64();
	__sync_fetch_and_add(&runs, 1);
	return 0;
}

SEC("tp/syscalls/sys_enter_write")
int look_at_call(void *ctx)
{
	__sync_fetch_and_add(&calls, !!bpf_ktime_get_ns());
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
