// SPDX-License-Identifier: MIT OR Apache-2.0
// Programs that change what a process gets of its system calls: no directory whose name begins with "no" is made, and what is
// called "this" is called "that".
#include <linux/bpf.h>
#include <linux/ptrace.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include "filter.h"

char LICENSE[] SEC("license") = "GPL";

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, COUNTS);
	__type(key, __u32);
	__type(value, __u64);
} counts SEC(".maps");

static void add(__u32 which)
{
	__u64 *count = bpf_map_lookup_elem(&counts, &which);

	if (count)
		__sync_fetch_and_add(count, 1);
}

// What BPF_KSYSCALL does needs the kernel's own types: the registers of the call are the function's argument.
static __u64 argument(struct pt_regs *context, __u64 offset)
{
	__u64 value = 0;

	bpf_probe_read_kernel(&value, sizeof(value), (void *)(PT_REGS_PARM1(context) + offset));
	return value;
}

SEC("ksyscall/mkdir")
int before_mkdir(struct pt_regs *context)
{
	char *name = (char *)argument(context, __builtin_offsetof(struct pt_regs, rdi));
	char start[5] = { 0 };

	bpf_probe_read_user(start, sizeof(start), name);
	if (start[0] == 'n' && start[1] == 'o') {
		add(REFUSED);
		bpf_override_return(context, -1);
	} else if (start[0] == 't' && start[1] == 'h' && start[2] == 'i' && start[3] == 's') {
		add(RENAMED);
		bpf_probe_write_user(name, "that", 4);
	}
	return 0;
}

SEC("kretsyscall/mkdir")
int after_mkdir(struct pt_regs *context)
{
	add(PT_REGS_RC(context) == 0 ? MADE : FAILED);
	return 0;
}
