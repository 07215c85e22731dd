// SPDX-License-Identifier: MIT OR Apache-2.0
// Tells what it reads of the current task.
#include <linux/bpf.h>
#include <linux/ptrace.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include "tell.bpf.h"

// The members that are read; where they are says the running kernel's BTF.
#define KERNEL_TYPE __attribute__((preserve_access_index))

struct ns_common {
	unsigned inum;
} KERNEL_TYPE;

#define NAMESPACE(name)                                                              \
	struct name {                                                                \
		struct ns_common ns;                                                 \
	} KERNEL_TYPE

NAMESPACE(cgroup_namespace);
NAMESPACE(ipc_namespace);
NAMESPACE(mnt_namespace);
NAMESPACE(net);
NAMESPACE(time_namespace);
NAMESPACE(user_namespace);

struct pid_namespace {
	unsigned level;
	struct ns_common ns;
} KERNEL_TYPE;

struct new_utsname {
	char sysname[65];
	char nodename[65];
	char release[65];
	char version[65];
	char machine[65];
	char domainname[65];
} KERNEL_TYPE;

struct uts_namespace {
	struct new_utsname name;
	struct ns_common ns;
} KERNEL_TYPE;

struct nsproxy {
	struct uts_namespace *uts_ns;
	struct ipc_namespace *ipc_ns;
	struct mnt_namespace *mnt_ns;
	struct pid_namespace *pid_ns_for_children;
	struct net *net_ns;
	struct time_namespace *time_ns;
	struct time_namespace *time_ns_for_children;
	struct cgroup_namespace *cgroup_ns;
} KERNEL_TYPE;

typedef struct {
	unsigned val;
} KERNEL_TYPE kuid_t;

typedef struct {
	unsigned val;
} KERNEL_TYPE kgid_t;

struct cred {
	kuid_t uid, suid, euid, fsuid;
	kgid_t gid, sgid, egid, fsgid;
	struct user_namespace *user_ns;
} KERNEL_TYPE;

struct mm_struct {
	unsigned long start_code, end_code, start_data, end_data, start_brk, start_stack;
	unsigned long arg_start, arg_end, env_start, env_end;
} KERNEL_TYPE;

struct upid {
	int nr;
	struct pid_namespace *ns;
} KERNEL_TYPE;

struct pid {
	unsigned level;
	struct upid numbers[1];
} KERNEL_TYPE;

struct task_struct {
	unsigned __state, flags, policy, rt_priority, sessionid;
	int exit_code, exit_signal, pid, tgid;
	unsigned long stack_canary;
	struct task_struct *real_parent, *parent, *group_leader;
	unsigned long long start_time, start_boottime;
	const struct cred *cred, *real_cred;
	struct mm_struct *mm, *active_mm;
	struct nsproxy *nsproxy;
	struct pid *thread_pid;
	kuid_t loginuid;
	char comm[16];
} KERNEL_TYPE;

#define READ(fields...) TELL(#fields, BPF_CORE_READ(task, fields))
// Runs a read to `to` (24 bytes, of 0xaa before) and tells its result and those bytes.
#define READS(text, call)                                                            \
	do {                                                                         \
		char to[24];                                                         \
		__builtin_memset(to, 0xaa, sizeof(to));                              \
		asm volatile("" ::"r"(to) : "memory");                               \
		long result = (call);                                                \
		TELL_BYTES(text, result, to, sizeof(to));                            \
	} while (0)
#define AT(of, member) __builtin_preserve_access_index(&(of)->member)
// To the tick, as who has no kernel to ask can know it.
#define TICK_NS 10000000

SEC("uprobe")
int ids(void *ctx)
{
	struct task_struct *task = (void *)bpf_get_current_task();

	TELL("task is of the kernel", (long)task < 0);
	READ(pid);
	READ(tgid);
	READ(real_parent, tgid);
	READ(real_parent, pid);
	READ(parent, tgid);
	READ(group_leader, pid);
	READ(group_leader, tgid);
	READ(group_leader, real_parent, tgid);
	READ(real_parent, real_parent, tgid);
	READ(thread_pid, level);
	READ(thread_pid, numbers[0].nr);
	READ(thread_pid, numbers[0].ns, ns.inum);
	READ(nsproxy, pid_ns_for_children, level);
	READ(cred, uid.val);
	READ(cred, euid.val);
	READ(cred, suid.val);
	READ(cred, fsuid.val);
	READ(cred, gid.val);
	READ(cred, egid.val);
	READ(cred, sgid.val);
	READ(cred, fsgid.val);
	READ(cred, user_ns, ns.inum);
	READ(loginuid.val);
	READ(sessionid);
	TELL("leader is itself", BPF_CORE_READ(task, group_leader) == task);
	TELL("leader's leader", BPF_CORE_READ(task, group_leader, group_leader) == BPF_CORE_READ(task, group_leader));
	TELL("one address", (void *)bpf_get_current_task() == (void *)task);
	return 0;
}

SEC("uprobe")
int states(void *ctx)
{
	struct task_struct *task = (void *)bpf_get_current_task();

	READ(__state);
	READ(flags);
	READ(exit_code);
	READ(exit_signal);
	READ(policy);
	READ(rt_priority);
	TELL("start_time", BPF_CORE_READ(task, start_time) / TICK_NS);
	TELL("start_boottime", BPF_CORE_READ(task, start_boottime) / TICK_NS);
	TELL("leader's start", BPF_CORE_READ(task, group_leader, start_boottime) / TICK_NS);
	TELL("parent's start", BPF_CORE_READ(task, real_parent, start_boottime) / TICK_NS);
	READ(mm, start_code);
	READ(mm, end_code);
	READ(mm, start_data);
	READ(mm, end_data);
	READ(mm, start_brk);
	READ(mm, start_stack);
	READ(mm, arg_start);
	READ(mm, arg_end);
	READ(mm, env_start);
	READ(mm, env_end);
	READ(active_mm, arg_start);
	READ(group_leader, mm, arg_start);
	return 0;
}

SEC("uprobe")
int namespaces(void *ctx)
{
	struct task_struct *task = (void *)bpf_get_current_task();
	struct uts_namespace *uts = BPF_CORE_READ(task, nsproxy, uts_ns);
	const void *name = AT(uts, name.nodename);

	READ(nsproxy, uts_ns, ns.inum);
	READ(nsproxy, ipc_ns, ns.inum);
	READ(nsproxy, mnt_ns, ns.inum);
	READ(nsproxy, net_ns, ns.inum);
	READ(nsproxy, cgroup_ns, ns.inum);
	READ(nsproxy, time_ns, ns.inum);
	READ(nsproxy, time_ns_for_children, ns.inum);
	READ(nsproxy, pid_ns_for_children, ns.inum);
	READS("nodename", bpf_probe_read_kernel_str(to, 24, name));
	READS("nodename of 24", bpf_probe_read_kernel(to, 24, name));
	return 0;
}

SEC("uprobe")
int parts(void *ctx)
{
	struct task_struct *task = (void *)bpf_get_current_task();
	struct task_struct *leader = BPF_CORE_READ(task, group_leader), *parent = BPF_CORE_READ(task, real_parent);
	const void *comm = AT(task, comm), *pid = AT(task, pid);
	const void *of_leader = AT(leader, comm), *of_parent = AT(parent, comm);

	READS("comm", bpf_probe_read_kernel(to, 16, comm));
	READS("comm from its middle", bpf_probe_read_kernel(to, 4, comm + 4));
	READS("comm, string", bpf_probe_read_kernel_str(to, 24, comm));
	READS("comm, cut", bpf_probe_read_kernel_str(to, 4, comm));
	READS("comm, 1 byte", bpf_probe_read_kernel_str(to, 1, comm));
	READS("comm, no bytes", bpf_probe_read_kernel_str(to, 0, comm));
	READS("comm, end of string", bpf_probe_read_kernel_str(to, 24, comm + 3));
	READS("comm, any", bpf_probe_read(to, 16, comm));
	READS("comm, any string", bpf_probe_read_str(to, 5, comm));
	READS("leader's comm", bpf_probe_read_kernel(to, 16, of_leader));
	READS("parent's comm", bpf_probe_read_kernel_str(to, 16, of_parent));
	READS("pid, 1 byte", bpf_probe_read_kernel(to, 1, pid));
	READS("pid from its middle", bpf_probe_read_kernel(to, 2, pid + 1));
	READS("pid and tgid", bpf_probe_read_kernel(to, 8, pid));
	READS("pid over to tgid", bpf_probe_read_kernel(to, 4, pid + 2));
	READS("pid, no bytes", bpf_probe_read_kernel(to, 0, pid));
	READS("user memory", bpf_probe_read_user(to, 8, task));
	READS("user string", bpf_probe_read_user_str(to, 8, task));
	task = bpf_get_current_task_btf();
	READS("typed task's pid", bpf_probe_read_kernel(to, 4, AT(task, pid)));
	READS("typed task's comm", bpf_probe_read_kernel_str(to, 16, AT(task, comm)));
	return 0;
}

// What only the kernel itself can read.
SEC("uprobe")
int unknown(void *ctx)
{
	struct task_struct *task = (void *)bpf_get_current_task();
	const void *pid = AT(task, pid), *comm = AT(task, comm), *canary = AT(task, stack_canary);

	READS("hidden: canary", bpf_probe_read_kernel(to, 8, canary));
	READS("hidden: pid, tgid and canary", bpf_probe_read_kernel(to, 16, pid));
	READS("hidden: comm and more", bpf_probe_read_kernel(to, 24, comm));
	READS("hidden: before pid", bpf_probe_read_kernel(to, 8, pid - 4));
	READS("hidden: canary's string", bpf_probe_read_kernel_str(to, 8, canary));
	READS("canary, no bytes", bpf_probe_read_kernel(to, 0, canary));
	READS("hidden: all of it", bpf_probe_read_kernel(to, 24, task));
	READS("hidden: behind all", bpf_probe_read_kernel(to, 8, (void *)task + 0x7ff8));
	READS("hidden: behind the last", bpf_probe_read_kernel(to, 8, (void *)0xffff87fffffffffcUL));
	READS("hidden: a thread that is none", bpf_probe_read_kernel(to, 8, comm + (1UL << 36)));
	READS("hidden: another namespace's thread", bpf_probe_read_kernel(to, 8, pid + (1UL << 37)));
	READS("hidden: end of addresses", bpf_probe_read_kernel(to, 16, (void *)-8L));
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
