// What object files can ask for, more than the tools that are installed do: a program for each. Nothing here is run.
#include <linux/bpf.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

#define CORE __attribute__((preserve_access_index))

// Flavors, bit fields, enumerations, nested and anonymous members, arrays.
struct list_head___mine {
	struct list_head___mine *next;
} CORE;
struct task_struct {
	int pid;
	char comm[16];
	struct list_head___mine tasks;
	unsigned in_execve : 1;
	unsigned in_iowait : 1;
	unsigned long absent_word;
} CORE;
struct task_struct___old {
	long state;
} CORE;
struct task_struct___new {
	unsigned __state;
} CORE;
struct upid {
	int nr;
} CORE;
struct pid {
	unsigned level;
	struct upid numbers[];
} CORE;
struct file___gone {
	int no_such_member;
} CORE;
struct structure_that_is_not_there {
	int member;
} CORE;
enum pid_type {
	PIDTYPE_PID,
	PIDTYPE_TGID,
	PIDTYPE_NOT_THERE = 99,
};
typedef unsigned long long u64_typedef_that_is_not_there;
typedef int pid_t;

struct bpf_cpumask {
	int usage;
} CORE;
extern struct bpf_cpumask *bpf_cpumask_create(void) __ksym;
extern void bpf_cpumask_release(struct bpf_cpumask *mask) __ksym;
extern int function_that_is_not_there(int) __ksym __weak;

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 64);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, struct { int a; long b; });
} words SEC(".maps");

struct inner {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 4);
	__type(key, int);
	__type(value, long);
} first SEC(".maps");
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 2);
	__type(key, int);
	__array(values, struct inner);
} outer SEC(".maps"), ready SEC(".maps") = {
	.values = { 0, &first },
};
int tail(void *context);
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 3);
	__uint(key_size, 4);
	__array(values, int(void *));
} next SEC(".maps") = {
	.values = { [2] = (void *)&tail },
};
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} ring SEC(".maps");
struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, long);
} storage SEC(".maps");

extern int LINUX_KERNEL_VERSION __kconfig;
extern _Bool LINUX_HAS_BPF_COOKIE __kconfig __weak;
extern _Bool LINUX_HAS_SYSCALL_WRAPPER __kconfig __weak;
extern _Bool CONFIG_THAT_IS_NOT_THERE __kconfig __weak;
extern enum libbpf_tristate CONFIG_NO_TRISTATE __kconfig __weak;
extern char CONFIG_NO_TEXT[8] __kconfig __weak;
extern unsigned short CONFIG_HZ __kconfig;
extern _Bool CONFIG_BPF_JIT __kconfig;
extern enum libbpf_tristate CONFIG_BPF_SYSCALL __kconfig;
extern char CONFIG_NET __kconfig;
extern unsigned long CONFIG_PHYSICAL_START __kconfig __weak;
extern char CONFIG_CC_VERSION_TEXT[7] __kconfig __weak;

struct rq {
	int nr_running;
} CORE;
extern struct rq runqueues __ksym;
extern const int variable_that_is_not_there __ksym __weak;
extern const void address_that_is_not_there __ksym __weak;

const volatile int wanted = 3;
const volatile char text[] = "abc";
long counted[4] = { 1, 2, 3, 4 };
static volatile long quiet = 7;
long seen;
int zeroes[16] SEC(".data.more");
long hidden_word __attribute__((visibility("hidden")));

static __attribute__((noinline)) long twice(long value)
{
	return value * 2 + quiet;
}

__attribute__((noinline)) long both(long value)
{
	return twice(value) + counted[value & 3];
}

__attribute__((noinline, visibility("hidden"))) long shy(long value)
{
	return both(value) + twice(value + 1) + hidden_word;
}

static long each(unsigned index, void *data)
{
	*(long *)data += twice(index);
	return 0;
}

SEC("kprobe/do_nanosleep")
int calls(void *context)
{
	seen += both(wanted) + shy(seen) + text[seen & 3] + zeroes[seen & 15];
	return 0;
}

SEC("kprobe.multi/do_*")
int callback(void *context)
{
	long sum = 0;
	bpf_loop(10, each, &sum, 0);
	seen += sum;
	return 0;
}

SEC("raw_tp/sched_switch")
int configured(void *context)
{
	if (LINUX_KERNEL_VERSION < 0x50f00 || !LINUX_HAS_BPF_COOKIE)
		seen++;
	if (CONFIG_THAT_IS_NOT_THERE || CONFIG_NO_TRISTATE == TRI_MODULE || CONFIG_NO_TEXT[0] || LINUX_HAS_SYSCALL_WRAPPER)
		seen += 2;
	seen += CONFIG_HZ + CONFIG_BPF_JIT + CONFIG_BPF_SYSCALL + CONFIG_NET + CONFIG_PHYSICAL_START + CONFIG_CC_VERSION_TEXT[2];
	return 0;
}

SEC("tp_btf/sched_switch")
int symbols(void *context)
{
	struct rq *rq = bpf_per_cpu_ptr(&runqueues, 0);
	if (rq)
		seen += rq->nr_running;
	if (&variable_that_is_not_there)
		seen++;
	if (&address_that_is_not_there)
		seen++;
	return 0;
}

SEC("tp_btf/sched_wakeup")
int functions(void *context)
{
	struct bpf_cpumask *mask = bpf_cpumask_create();
	if (mask)
		bpf_cpumask_release(mask);
	return 0;
}

SEC("tp_btf/sched_wakeup_new")
int functions_not_there(void *context)
{
	if (wanted == 4)
		seen += function_that_is_not_there(1);
	return 0;
}

SEC("raw_tp.w/bpf_test_finish")
int fields(void *context)
{
	struct task_struct *task = (void *)bpf_get_current_task_btf();
	seen += task->pid + task->comm[3] + (task->tasks.next != 0);
	seen += BPF_CORE_READ_BITFIELD(task, in_iowait);
	seen += bpf_core_field_size(task->comm) + bpf_core_field_offset(task->comm);
	seen += bpf_core_field_exists(task->absent_word);
	if (bpf_core_field_exists(task->absent_word))
		seen += task->absent_word;
	struct task_struct___old *old = (void *)task;
	struct task_struct___new *new = (void *)task;
	seen += bpf_core_field_exists(old->state) ? old->state : new->__state;
	return 0;
}

SEC("tracepoint/syscalls/sys_enter_getpid")
int kinds(void *context)
{
	seen += bpf_core_type_exists(struct structure_that_is_not_there) + bpf_core_type_exists(struct pid);
	seen += bpf_core_type_size(struct task_struct) + bpf_core_type_size(struct structure_that_is_not_there);
	seen += bpf_core_type_exists(u64_typedef_that_is_not_there) + bpf_core_type_exists(pid_t);
	seen += bpf_core_type_id_local(struct pid) + bpf_core_type_id_kernel(struct pid);
	seen += bpf_core_enum_value_exists(enum pid_type, PIDTYPE_TGID) + bpf_core_enum_value(enum pid_type, PIDTYPE_TGID);
	seen += bpf_core_enum_value_exists(enum pid_type, PIDTYPE_NOT_THERE);
	if (bpf_core_enum_value_exists(enum pid_type, PIDTYPE_NOT_THERE))
		seen += bpf_core_enum_value(enum pid_type, PIDTYPE_NOT_THERE);
	return 0;
}

SEC("perf_event")
int elements(void *context)
{
	struct pid *pid = 0;
	int nr = 0;
	bpf_core_read(&nr, sizeof(nr), &pid->numbers[2].nr);
	seen += nr;
	return 0;
}

SEC("kretprobe/do_nanosleep")
int poisoned(void *context)
{
	struct file___gone *file = 0;
	int value = 0;
	if (wanted == 4)
		bpf_probe_read_kernel(&value, sizeof(value), &file->no_such_member);
	seen += value;
	return 0;
}

SEC("socket")
int tail(void *context)
{
	return 0;
}

SEC("socket")
int tails(void *context)
{
	int key = 1;
	void *map = bpf_map_lookup_elem(&ready, &key);
	bpf_tail_call(context, &next, 2);
	return map != 0;
}

SEC("iter.s/task")
int iterate(void *context)
{
	return 0;
}

SEC("?lsm.s/file_open")
int guard(void *context)
{
	return 0;
}

SEC("xdp")
int frames(struct xdp_md *context)
{
	int key = 1;
	void *map = bpf_map_lookup_elem(&outer, &key);
	long *word = map ? bpf_map_lookup_elem(map, &key) : 0;
	return word && *word ? XDP_DROP : XDP_PASS;
}

SEC("cgroup/connect4")
int connects(struct bpf_sock_addr *context)
{
	long *place = bpf_ringbuf_reserve(&ring, 8, 0);
	if (place) {
		*place = context->user_port;
		bpf_ringbuf_submit(place, 0);
	}
	return 1;
}

char declared[] SEC("license") = "Dual MIT/GPL";
