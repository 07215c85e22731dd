// SPDX-License-Identifier: MIT OR Apache-2.0
// What the extensions of this directory have in common: which thread of which process appends to the log, and what was told to them.
//
// A *round* is one pass of redis's event loop: it appends the updates of all clients that have sent one to the log, calls fdatasync
// (`appendfsync always`), and then answers. A client that waits for each answer has one update in a round at most.
//
// Whenever something is unclear, fdatasync runs as without the extension: that is always right.
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#define RUN 0
#define DONE 1

#define BIO_CLOSE_FILE 0
#define BIO_AOF_FSYNC 1
// Jobs that are waited for at most. More than a few there are never.
#define JOBS_MAX 64

struct log {
	// Rounds that were written to the log, and how many of them are durable for certain (`notify` only).
	unsigned long written, durable;
	// The process whose log it is: the first that comes. Others that the extension is in are left alone.
	unsigned long process;
	// The thread that is in flushAppendOnlyFile, as bpf_get_current_pid_tgid tells it; 0: none.
	unsigned long inside;
	// Rounds that the fdatasync that is under way in the background, or in redis's main thread, makes durable.
	unsigned long covered;
	// A job in the background has not begun.
	unsigned long queued;
	// Rounds that no fdatasync was called for, and when the first of them was written (`batch` only), nanoseconds.
	unsigned long unsynced, since;
	// The log's descriptor at the last round.
	int fd;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct log);
} progress SEC(".maps");

// 0: how many rounds may be not durable when a round is answered; 0 is 1.
// 1: after how many milliseconds they are made durable if no other round comes (`batch` only); 0 is 100.
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, __u32);
} settings SEC(".maps");

static inline struct log *the_log(void)
{
	__u32 key = 0;
	return bpf_map_lookup_elem(&progress, &key);
}

static inline unsigned long setting(__u32 key, unsigned long otherwise)
{
	__u32 *value = bpf_map_lookup_elem(&settings, &key);
	return value && *value ? *value : otherwise;
}

// Redis calls fdatasync for other files, too, and also for the log when it ends: only calls within flushAppendOnlyFile are ours.
static inline void enter(struct log *log)
{
	unsigned long thread = bpf_get_current_pid_tgid();
	if (!log->process)
		__sync_val_compare_and_swap(&log->process, 0, thread >> 32);
	if (log->process == thread >> 32)
		log->inside = thread;
}

SEC("uprobe/flushed")
long end_flush(void *ctx)
{
	struct log *log = the_log();
	if (log && log->inside == bpf_get_current_pid_tgid())
		log->inside = 0;
	return 0;
}

char _license[] SEC("license") = "Dual MIT/GPL";
