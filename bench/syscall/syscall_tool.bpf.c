// SPDX-License-Identifier: MIT OR Apache-2.0
// The programs whose cost is measured: at the beginning and the end of each call, in both ways in which the kernel tells of
// all calls, one that does nothing, one that counts by number in a hash map, and one that does so in a per-CPU array; and
// at those of one call, `openat`, one that counts.
#include <linux/bpf.h>
#include <linux/ptrace.h>
#include <bpf/bpf_helpers.h>

#define NUMBERS 512

// Whose calls count; 0: everybody's.
const volatile __u32 wanted;

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 2 * NUMBERS);
	__type(key, __u32);
	__type(value, __u64);
} counts SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 2 * NUMBERS);
	__type(key, __u32);
	__type(value, __u64);
} cells SEC(".maps");

struct raw_context {
	__u64 args[2];
};

// As in events/raw_syscalls/*/format; those of events/syscalls have the number in four bytes, at the same place.
struct event {
	__u64 common;
	__s64 number;
	__u64 values[6];
};

static __always_inline int is_wanted(void)
{
	return !wanted || bpf_get_current_pid_tgid() >> 32 == wanted;
}

// Ends count behind all beginnings.
static __always_inline int by_hash(__u32 number, int is_exit)
{
	__u32 key = number + is_exit * NUMBERS;
	__u64 zero = 0, *value;

	if (!is_wanted())
		return 0;
	value = bpf_map_lookup_elem(&counts, &key);
	if (!value) {
		bpf_map_update_elem(&counts, &key, &zero, BPF_NOEXIST);
		value = bpf_map_lookup_elem(&counts, &key);
		if (!value)
			return 0;
	}
	__sync_fetch_and_add(value, 1);
	return 0;
}

static __always_inline int by_cpu(__u32 number, int is_exit)
{
	__u32 key = number + is_exit * NUMBERS;
	__u64 *cell;

	if (!is_wanted())
		return 0;
	cell = bpf_map_lookup_elem(&cells, &key);
	if (cell)
		*cell += 1;
	return 0;
}

static __always_inline __u32 number_of(struct raw_context *context)
{
	struct pt_regs *regs = (struct pt_regs *)context->args[0];
	__u64 number = 0;

	bpf_probe_read_kernel(&number, sizeof(number), &regs->orig_rax);
	return number;
}

SEC("raw_tp/sys_enter")
int raw_enter_empty(struct raw_context *context)
{
	return 0;
}

SEC("raw_tp/sys_exit")
int raw_exit_empty(struct raw_context *context)
{
	return 0;
}

SEC("raw_tp/sys_enter")
int raw_enter_hash(struct raw_context *context)
{
	return by_hash(context->args[1], 0);
}

SEC("raw_tp/sys_exit")
int raw_exit_hash(struct raw_context *context)
{
	return by_hash(number_of(context), 1);
}

SEC("raw_tp/sys_enter")
int raw_enter_percpu(struct raw_context *context)
{
	return by_cpu(context->args[1], 0);
}

SEC("raw_tp/sys_exit")
int raw_exit_percpu(struct raw_context *context)
{
	return by_cpu(number_of(context), 1);
}

SEC("tp/raw_syscalls/sys_enter")
int trace_enter_empty(struct event *event)
{
	return 0;
}

SEC("tp/raw_syscalls/sys_exit")
int trace_exit_empty(struct event *event)
{
	return 0;
}

SEC("tp/raw_syscalls/sys_enter")
int trace_enter_hash(struct event *event)
{
	return by_hash(event->number, 0);
}

SEC("tp/raw_syscalls/sys_exit")
int trace_exit_hash(struct event *event)
{
	return by_hash(event->number, 1);
}

SEC("tp/raw_syscalls/sys_enter")
int trace_enter_percpu(struct event *event)
{
	return by_cpu(event->number, 0);
}

SEC("tp/raw_syscalls/sys_exit")
int trace_exit_percpu(struct event *event)
{
	return by_cpu(event->number, 1);
}

SEC("tp/syscalls/sys_enter_openat")
int openat_enter_hash(struct event *event)
{
	return by_hash(event->number, 0);
}

SEC("tp/syscalls/sys_exit_openat")
int openat_exit_hash(struct event *event)
{
	return by_hash(event->number, 1);
}

char LICENSE[] SEC("license") = "GPL";
