// SPDX-License-Identifier: MIT OR Apache-2.0
// Programs that count system calls in each of the ways in which the kernel tells of them.
#include <linux/bpf.h>
#include <linux/ptrace.h>
#include <bpf/bpf_helpers.h>
#include <stdbool.h>
#include "calls.h"

#define EXECVE 59
#define EXECVEAT 322

// Whose calls count: everybody's; those of processes that had this name once; those of processes (of this name) between
// two marks.
const volatile bool by_name, by_mark, in_order;
const volatile char name[16];

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, struct key);
	__type(value, __u64);
} counts SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__type(key, __u32);
	__type(value, __u32);
} known SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 20);
} records SEC(".maps");

// Records that found no room.
__u64 lost;

struct raw_context {
	__u64 args[2];
};

// As in events/raw_syscalls/*/format; those of events/syscalls have the number in four bytes, and the rest alike.
struct event {
	__u64 common;
	__s64 number;
	__u64 values[6];
};

static __always_inline bool has_the_name(void)
{
	char own[16];

	if (bpf_get_current_comm(own, sizeof(own)))
		return false;
	for (int i = 0; i < 16; i++) {
		if (own[i] != name[i])
			return false;
		if (!own[i])
			break;
	}
	return true;
}

static __always_inline bool is_wanted(struct key key)
{
	__u32 process = bpf_get_current_pid_tgid() >> 32, one = 1;
	bool is_exit = key.kind & 1;

	if (key.number == MARK)
		return false;
	if (bpf_map_lookup_elem(&known, &process))
		return true;
	// The end of the call that began before the process had the name, or was seen.
	if (by_mark || (is_exit && (key.number == EXECVE || key.number == EXECVEAT)) || (by_name && !has_the_name()))
		return false;
	bpf_map_update_elem(&known, &process, &one, BPF_ANY);
	return true;
}

static __always_inline void add(struct key key, const __u64 *values, int count)
{
	__u64 zero = 0, *value;

	if (!is_wanted(key))
		return;
	value = bpf_map_lookup_elem(&counts, &key);
	if (!value) {
		bpf_map_update_elem(&counts, &key, &zero, BPF_NOEXIST);
		value = bpf_map_lookup_elem(&counts, &key);
	}
	if (value)
		__sync_fetch_and_add(value, 1);
	if (in_order) {
		struct record *record = bpf_ringbuf_reserve(&records, sizeof(*record), 0);

		if (!record) {
			__sync_fetch_and_add(&lost, 1);
			return;
		}
		record->key = key;
		for (int i = 0; i < 6; i++)
			record->values[i] = i < count ? values[i] : 0;
		bpf_ringbuf_submit(record, 0);
	}
}

// The arguments of a call, or the registers that functions keep.
static __always_inline void registers(struct pt_regs *regs, bool kept, __u64 *values)
{
	struct pt_regs copy;

	bpf_probe_read_kernel(&copy, sizeof(copy), regs);
	values[0] = kept ? copy.rbx : copy.rdi;
	values[1] = kept ? copy.rbp : copy.rsi;
	values[2] = kept ? copy.r12 : copy.rdx;
	values[3] = kept ? copy.r13 : copy.r10;
	values[4] = kept ? copy.r14 : copy.r8;
	values[5] = kept ? copy.r15 : copy.r9;
}

SEC("raw_tp/sys_enter")
int raw_enter(struct raw_context *context)
{
	struct key key = { (int)context->args[1], RAW_ENTER };
	__u64 values[6] = { 0 };

	if (in_order)
		registers((struct pt_regs *)context->args[0], key.number == KEPT, values);
	add(key, values, 6);
	return 0;
}

SEC("raw_tp/sys_exit")
int raw_exit(struct raw_context *context)
{
	struct pt_regs *regs = (struct pt_regs *)context->args[0];
	struct key key = { 0, RAW_EXIT };
	__u64 number = 0;

	bpf_probe_read_kernel(&number, sizeof(number), &regs->orig_rax);
	key.number = number;
	add(key, &context->args[1], 1);
	return 0;
}

// Only in the loader's mode `-m`, and before the others.
SEC("raw_tp/sys_enter")
int mark(struct raw_context *context)
{
	__u32 process = bpf_get_current_pid_tgid() >> 32, one = 1;
	__u64 values[6] = { 0 };

	if (context->args[1] != MARK || (by_name && !has_the_name()))
		return 0;
	registers((struct pt_regs *)context->args[0], false, values);
	if (values[0] == MARK_BEGIN)
		bpf_map_update_elem(&known, &process, &one, BPF_ANY);
	else
		bpf_map_delete_elem(&known, &process);
	return 0;
}

static __always_inline int traced(struct event *event, enum kind kind)
{
	struct key key = { (int)event->number, kind };
	__u64 values[6] = { 0 };

	values[0] = event->values[0];
	if (!(kind & 1))
		for (int i = 1; i < 6; i++)
			values[i] = event->values[i];
	add(key, values, 6);
	return 0;
}

SEC("tp/raw_syscalls/sys_enter")
int trace_enter(struct event *event)
{
	return traced(event, TRACE_ENTER);
}

SEC("tp/raw_syscalls/sys_exit")
int trace_exit(struct event *event)
{
	return traced(event, TRACE_EXIT);
}

// A call that takes `count` arguments: there are no more in its context.
#define NAMED(call, count)                                                           \
	SEC("tp/syscalls/sys_enter_" #call)                                          \
	int named_enter_##call(struct event *event)                                  \
	{                                                                            \
		struct key key = { (int)event->number, NAMED_ENTER };                \
		__u64 values[6] = { 0 };                                             \
		for (int i = 0; i < count; i++)                                      \
			values[i] = event->values[i];                                \
		add(key, values, 6);                                                 \
		return 0;                                                            \
	}                                                                            \
	SEC("tp/syscalls/sys_exit_" #call)                                           \
	int named_exit_##call(struct event *event)                                   \
	{                                                                            \
		return traced(event, NAMED_EXIT);                                    \
	}

// With types registers are read as they are.
static __always_inline void typed_registers(const struct pt_regs *regs, __u64 *values)
{
	values[0] = regs->rdi;
	values[1] = regs->rsi;
	values[2] = regs->rdx;
	values[3] = regs->r10;
	values[4] = regs->r8;
	values[5] = regs->r9;
}

// Whether those of the task are these.
static __always_inline bool are_of_task(const struct pt_regs *regs)
{
	const struct pt_regs *of_task = (const struct pt_regs *)bpf_task_pt_regs(bpf_get_current_task_btf());

	return of_task->orig_rax == regs->orig_rax && of_task->rdi == regs->rdi && of_task->rsp == regs->rsp &&
	       of_task->rip == regs->rip;
}

SEC("tp_btf/sys_enter")
int typed_enter(struct raw_context *context)
{
	const struct pt_regs *regs = (const struct pt_regs *)context->args[0];
	struct key key = { (int)context->args[1], TYPED_ENTER };
	__u64 values[6] = { 0 };

	if (!are_of_task(regs))
		return 0;
	typed_registers(regs, values);
	add(key, values, 6);
	return 0;
}

SEC("tp_btf/sys_exit")
int typed_exit(struct raw_context *context)
{
	const struct pt_regs *regs = (const struct pt_regs *)context->args[0];
	struct key key = { (int)regs->orig_rax, TYPED_EXIT };

	if (are_of_task(regs))
		add(key, &context->args[1], 1);
	return 0;
}

// The kernel's function of a call, which takes `count` arguments.
#define FUNCTION(call, count)                                                        \
	SEC("fentry/__x64_sys_" #call)                                               \
	int function_enter_##call(struct raw_context *context)                       \
	{                                                                            \
		const struct pt_regs *regs = (const struct pt_regs *)context->args[0]; \
		struct key key = { (int)regs->orig_rax, FUNCTION_ENTER };            \
		__u64 values[6] = { 0 }, argument = 0;                               \
		if (bpf_get_func_arg(context, 0, &argument) || argument != context->args[0] || \
		    !are_of_task(regs))                                              \
			return 0;                                                    \
		typed_registers(regs, values);                                       \
		for (int i = count; i < 6; i++)                                      \
			values[i] = 0;                                               \
		add(key, values, 6);                                                 \
		return 0;                                                            \
	}                                                                            \
	SEC("fexit/__x64_sys_" #call)                                                \
	int function_exit_##call(struct raw_context *context)                        \
	{                                                                            \
		const struct pt_regs *regs = (const struct pt_regs *)context->args[0]; \
		struct key key = { (int)regs->orig_rax, FUNCTION_EXIT };             \
		__u64 argument = 0, beyond = 7, result = 0;                          \
		if (bpf_get_func_arg_cnt(context) != 1 ||                            \
		    bpf_get_func_arg(context, 0, &argument) || argument != context->args[0] || \
		    bpf_get_func_arg(context, 1, &beyond) != -22 ||                  \
		    bpf_get_func_ret(context, &result))                              \
			return 0;                                                    \
		add(key, &result, 1);                                                \
		return 0;                                                            \
	}

FUNCTION(openat, 4)
FUNCTION(close, 1)
FUNCTION(kill, 2)
FUNCTION(clock_nanosleep, 4)
FUNCTION(write, 3)

NAMED(openat, 4)
NAMED(close, 1)
NAMED(kill, 2)
NAMED(clock_nanosleep, 4)
NAMED(write, 3)

char LICENSE[] SEC("license") = "GPL";
