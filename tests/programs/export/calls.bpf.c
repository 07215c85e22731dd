// SPDX-License-Identifier: MIT OR Apache-2.0
// System calls by number, and errors by number: of each in another way in which the kernel tells of calls.
#include "export.bpf.h"

struct exit_context {
	__u64 unused;
	long number;
	long result;
};

struct raw_context {
	__u64 arguments[2];
};

struct group_key {
	__u64 cgroup;
};

COUNTERS(syscalls_total, HASH, 1024, __u64);
COUNTERS(syscall_errors_total, HASH, 1024, __u64);
COUNTERS(closes_total, HASH, 1024, struct group_key);

SEC("raw_tp/sys_enter")
int on_enter(struct raw_context *ctx)
{
	__u64 number = ctx->arguments[1];

	add(&syscalls_total, &number, 1);
	return 0;
}

SEC("tracepoint/raw_syscalls/sys_exit")
int on_exit(struct exit_context *ctx)
{
	__u64 error = -ctx->result;

	if (ctx->result < 0 && ctx->result > -4096)
		add(&syscall_errors_total, &error, 1);
	return 0;
}

SEC("tp/syscalls/sys_enter_close")
int on_close(void *ctx)
{
	struct group_key key = { .cgroup = bpf_get_current_cgroup_id() };

	add(&closes_total, &key, 1);
	return 0;
}

// What only the kernel sees, which is not exported, and harms nothing else.
SEC("kprobe/vfs_read")
int on_read(void *ctx)
{
	return 0;
}
