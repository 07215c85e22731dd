// SPDX-License-Identifier: MIT OR Apache-2.0
// Programs that take their time between reserving and submitting a record, and that add very often.
#include <linux/bpf.h>
#include <linux/ptrace.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include "storm.h"

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 18);
} ring SEC(".maps");

// Records submitted, by process.
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__type(key, __u32);
	__type(value, __u64);
} submitted SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} plain SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} per_cpu SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} per_cpu_hash SEC(".maps");

static __always_inline void add(void *map, __u32 key)
{
	__u64 zero = 0, *value = bpf_map_lookup_elem(map, &key);

	if (!value) {
		bpf_map_update_elem(map, &key, &zero, BPF_NOEXIST);
		value = bpf_map_lookup_elem(map, &key);
	}
	if (value)
		__sync_fetch_and_add(value, 1);
}

SEC("uprobe")
int BPF_KPROBE(hold, unsigned long number)
{
	struct event *event = bpf_ringbuf_reserve(&ring, sizeof(*event), 0);

	if (!event)
		return 0;
	event->pid_tgid = bpf_get_current_pid_tgid();
	for (int i = 0; i < 2000; i++)
		asm volatile("" : "+r"(i));
	event->number = number;
	bpf_ringbuf_submit(event, 0);
	add(&submitted, bpf_get_current_pid_tgid() >> 32);
	return 0;
}

SEC("uprobe")
int count(struct pt_regs *ctx)
{
	__u32 key = 0;
	__u64 zero = 0;
	__u64 *shared = bpf_map_lookup_elem(&plain, &key);
	volatile __u64 *own = bpf_map_lookup_elem(&per_cpu, &key);
	volatile __u64 *hashed = bpf_map_lookup_elem(&per_cpu_hash, &key);

	if (!hashed) {
		bpf_map_update_elem(&per_cpu_hash, &key, &zero, BPF_NOEXIST);
		hashed = bpf_map_lookup_elem(&per_cpu_hash, &key);
	}
	if (!shared || !own || !hashed)
		return 0;
	for (int i = 0; i < ADDITIONS; i++) {
		// Not in one instruction, which nothing on the same CPU comes between.
		__u64 before = *own;

		__sync_fetch_and_add(shared, 1);
		*hashed += 1;
		*own = before + 1;
	}
	return 0;
}

SEC("uprobe")
int tick(struct pt_regs *ctx)
{
	__u32 key = 0;
	volatile __u64 *own = bpf_map_lookup_elem(&per_cpu, &key);

	if (own)
		*own += 1;
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
