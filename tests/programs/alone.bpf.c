// Programs that `ring3 exec` runs: r1 is memory, r2 its length. Maps are theirs alone.
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 64);
	__type(key, __u32);
	__type(value, __u64);
} seen SEC(".maps");

const volatile __u64 factor = 3;
__u64 runs;

// How many of the first four bytes were seen before, in this run or another, times `factor`.
SEC("syscall")
int count(const __u8 *memory)
{
	__u64 one = 1, again = 0;
	for (int at = 0; at < 4; at++) {
		__u32 key = memory[at];
		__u64 *count = bpf_map_lookup_elem(&seen, &key);
		if (count)
			again += ++*count > 1;
		else
			bpf_map_update_elem(&seen, &key, &one, BPF_ANY);
	}
	runs++;
	return again * factor;
}

SEC("syscall")
int other(const __u8 *memory)
{
	return runs;
}

char LICENSE[] SEC("license") = "GPL";
