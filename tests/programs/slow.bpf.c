// SPDX-License-Identifier: MIT OR Apache-2.0
// Programs that take their time, and one that does not.
#include <linux/bpf.h>
#include <linux/ptrace.h>
#include <bpf/bpf_helpers.h>

#define SLOW_NS 200000

// Runs of each program, in the order in which they stand here.
__u64 runs[3];

static long wait_on(__u32 index, void *until)
{
	return bpf_ktime_get_ns() > *(__u64 *)until;
}

static __always_inline void take_time(void)
{
	__u64 until = bpf_ktime_get_ns() + SLOW_NS;

	bpf_loop(1 << 20, wait_on, &until, 0);
}

SEC("uprobe")
int slow(struct pt_regs *ctx)
{
	__sync_fetch_and_add(&runs[0], 1);
	take_time();
	return 0;
}

SEC("uprobe")
int quick(struct pt_regs *ctx)
{
	__sync_fetch_and_add(&runs[1], 1);
	return 0;
}

SEC("tp/syscalls/sys_enter_getppid")
int slow_call(void *ctx)
{
	__sync_fetch_and_add(&runs[2], 1);
	take_time();
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
