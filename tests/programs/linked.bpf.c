// A program that linked.c is linked with: a map, a variable, a subprogram, a helper, a tail call's two beginnings.
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 4);
	__type(key, __u32);
	__type(value, __u64);
} weights SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} others SEC(".maps");

__u64 runs;

static __noinline __u64 weigh(__u64 number)
{
	return number * 3 + bpf_ktime_get_ns();
}

SEC("syscall")
int linked(const __u8 *memory)
{
	__u32 key = memory[0] & 3;
	__u64 *weight = bpf_map_lookup_elem(&weights, &key);

	runs++;
	if (!weight)
		return 0;
	*weight += weigh(memory[1]);
	return *weight;
}

SEC("syscall")
int goes_on(void *context)
{
	bpf_tail_call(context, &others, 0);
	return 17;
}

char LICENSE[] SEC("license") = "GPL";
