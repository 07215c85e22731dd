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

char LICENSE[] SEC("license") = "GPL";
