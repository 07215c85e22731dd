// SPDX-License-Identifier: MIT OR Apache-2.0
// Programs that hold something while they touch a map whose memory the traced process may have taken away.
#include <linux/bpf.h>
#include <linux/ptrace.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

#define LAST 63

struct page {
	__u64 words[512];
};

// The victim takes these two away.
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, LAST + 1);
	__type(key, __u32);
	__type(value, struct page);
} lost_array SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1000);
	__type(key, __u64);
	__type(value, struct page);
} lost_hash SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 100);
	__type(key, __u64);
	__type(value, struct page);
} kept SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 16);
} records SEC(".maps");

// How often each program has begun, and has ended; what they have read.
__u64 began[4], ended[4], sum;

static __always_inline struct page *last_page(void)
{
	__u32 last = LAST;

	return bpf_map_lookup_elem(&lost_array, &last);
}

SEC("uprobe")
int record(struct pt_regs *ctx)
{
	struct page *page = last_page();
	__u64 *record, word = 0;

	__sync_fetch_and_add(&began[0], 1);
	bpf_probe_read_user(&word, sizeof(word), (void *)PT_REGS_PARM1(ctx));
	__sync_fetch_and_add(&sum, word);
	record = bpf_ringbuf_reserve(&records, sizeof(*record), 0);
	if (!record)
		return 0;
	if (page)
		*record = page->words[7]++;
	bpf_ringbuf_submit(record, 0);
	__sync_fetch_and_add(&ended[0], 1);
	return 0;
}

// The value is copied while the bucket is locked.
SEC("uprobe")
int lock(struct pt_regs *ctx)
{
	struct page *page = last_page();
	__u64 key = 7;

	__sync_fetch_and_add(&began[1], 1);
	if (page)
		bpf_map_update_elem(&kept, &key, page, BPF_ANY);
	__sync_fetch_and_add(&ended[1], 1);
	return 0;
}

static struct page blank;

SEC("uretprobe")
int helper(struct pt_regs *ctx)
{
	__u64 key = 5;

	__sync_fetch_and_add(&began[2], 1);
	bpf_map_update_elem(&lost_hash, &key, &blank, BPF_ANY);
	__sync_fetch_and_add(&ended[2], 1);
	return 0;
}

static long touch(void *map, const void *key, void *value, void *unused)
{
	struct page *page = last_page();

	if (page)
		page->words[11]++;
	return 0;
}

SEC("tp/syscalls/sys_enter_getppid")
int callback(void *ctx)
{
	__sync_fetch_and_add(&began[3], 1);
	bpf_for_each_map_elem(&kept, touch, 0, 0);
	__sync_fetch_and_add(&ended[3], 1);
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
