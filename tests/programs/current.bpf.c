// SPDX-License-Identifier: MIT OR Apache-2.0
// Tells what helpers say of the thread that runs.
#include <linux/bpf.h>
#include <linux/ptrace.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include "tell.bpf.h"

SEC("uprobe")
int cgroups(void *ctx)
{
	TELL("cgroup", bpf_get_current_cgroup_id());
	TELL("ancestor -1", bpf_get_current_ancestor_cgroup_id(-1));
	TELL("ancestor 0", bpf_get_current_ancestor_cgroup_id(0));
	TELL("ancestor 1", bpf_get_current_ancestor_cgroup_id(1));
	TELL("ancestor 1 again", bpf_get_current_ancestor_cgroup_id(1));
	TELL("ancestor 2", bpf_get_current_ancestor_cgroup_id(2));
	TELL("ancestor 3", bpf_get_current_ancestor_cgroup_id(3));
	TELL("ancestor 1000", bpf_get_current_ancestor_cgroup_id(1000));
	return 0;
}

SEC("uprobe")
int BPF_KPROBE(ids, unsigned long device, unsigned long inode)
{
	struct bpf_pidns_info info;

#define IDS(text, device, inode, bytes)                                              \
	do {                                                                         \
		__builtin_memset(&info, 0xaa, sizeof(info));                         \
		long result = bpf_get_ns_current_pid_tgid(device, inode, &info, bytes); \
		TELL_BYTES(text, result, &info, sizeof(info));                       \
	} while (0)
	IDS("ids", device, inode, 8);
	IDS("ids again", device, inode, 8);
	IDS("ids of another device", device + 1, inode, 8);
	IDS("ids of a long device", device + (1UL << 32), inode, 8);
	IDS("ids of another inode", device, inode + 1, 8);
	IDS("ids of no inode", 0, 0, 8);
	IDS("ids, 7 bytes", device, inode, 7);
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
