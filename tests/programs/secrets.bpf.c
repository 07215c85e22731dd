// SPDX-License-Identifier: MIT OR Apache-2.0
// Keeps what a function is called with, in every kind of map that a tool reads.
#include <linux/bpf.h>
#include <linux/ptrace.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include "secrets.h"

#define MAP(name, kind, key_type, value_type, entries) \
	struct {                                       \
		__uint(type, kind);                    \
		__uint(max_entries, entries);          \
		__type(key, key_type);                 \
		__type(value, value_type);             \
	} name SEC(".maps")

MAP(by_pid, BPF_MAP_TYPE_HASH, unsigned, struct record, 64);
MAP(recent, BPF_MAP_TYPE_LRU_HASH, unsigned, struct record, 64);
MAP(array, BPF_MAP_TYPE_ARRAY, unsigned, struct record, 4);
MAP(counts, BPF_MAP_TYPE_HASH, unsigned, unsigned long long, 4);
MAP(cpu_counts, BPF_MAP_TYPE_PERCPU_ARRAY, unsigned, unsigned long long, 1);
MAP(cpu_hash, BPF_MAP_TYPE_PERCPU_HASH, unsigned, struct record, 64);
MAP(enabled, BPF_MAP_TYPE_HASH, unsigned, unsigned, 4);

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 16);
} ring SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERF_EVENT_ARRAY);
	__uint(key_size, 4);
	__uint(value_size, 4);
} perf SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_STACK_TRACE);
	__uint(max_entries, 64);
	__uint(key_size, 4);
	__uint(value_size, 8 * DEPTH);
} stacks SEC(".maps");

const volatile unsigned wanted_length = 1;
unsigned long long total;
char last[TEXT_BYTES];


SEC("uprobe")
int keep(struct pt_regs *ctx)
{
	unsigned zero = 0, *is_enabled = bpf_map_lookup_elem(&enabled, &zero);
	struct record record = {}, *there;
	unsigned long long *count, one = 1;

	if (!is_enabled || !*is_enabled)
		return 0;
	record.pid = bpf_get_current_pid_tgid() >> 32;
	record.uid = bpf_get_current_uid_gid();
	if (bpf_probe_read_user_str(record.text, sizeof(record.text), (void *)PT_REGS_PARM1(ctx)) < (long)wanted_length)
		return 0;
	record.stack = bpf_get_stackid(ctx, &stacks, BPF_F_USER_STACK);
	record.calls = 1;
	there = bpf_map_lookup_elem(&by_pid, &record.pid);
	if (there)
		record.calls = there->calls + 1;
	bpf_map_update_elem(&by_pid, &record.pid, &record, BPF_ANY);
	bpf_map_update_elem(&recent, &record.pid, &record, BPF_ANY);
	bpf_map_update_elem(&cpu_hash, &record.pid, &record, BPF_ANY);
	there = bpf_map_lookup_elem(&array, &zero);
	if (there && !there->calls)
		*there = record;
	bpf_map_update_elem(&counts, &zero, &(unsigned long long){ 0 }, BPF_NOEXIST);
	count = bpf_map_lookup_elem(&counts, &zero);
	if (count)
		__sync_fetch_and_add(count, one);
	count = bpf_map_lookup_elem(&cpu_counts, &zero);
	if (count)
		*count += 1;
	__sync_fetch_and_add(&total, one);
	__builtin_memcpy(last, record.text, sizeof(last));
	bpf_ringbuf_output(&ring, &record, sizeof(record), 0);
	bpf_perf_event_output(ctx, &perf, BPF_F_CURRENT_CPU, &record, sizeof(record));
	bpf_printk("%s", record.text);
	return 0;
}

char _license[] SEC("license") = "GPL";
