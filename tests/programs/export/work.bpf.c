// SPDX-License-Identifier: MIT OR Apache-2.0
// Counters and histograms of every shape, at a function of `tests/victims/exported.c`.
#include "export.bpf.h"

struct kind_key {
	__u32 kind;
	__u32 unused;
};

struct bucket_key {
	__u32 kind;
	__u32 bucket;
};

struct name_key {
	char name[16];
};

// (The last bucket of `work_bytes`; behind it is the sum.)
#define BUCKET_MAX 10
#define FIXED_MAX 50

COUNTERS(work_total, HASH, 16, struct kind_key);
COUNTERS(work_by_cpu_total, PERCPU_HASH, 16, __u32);
COUNTERS(work_summed_total, LRU_PERCPU_HASH, 16, __u32);
COUNTERS(work_runs_total, ARRAY, 1, __u32);
COUNTERS(work_runs_by_cpu_total, PERCPU_ARRAY, 1, __u32);
COUNTERS(names_total, LRU_HASH, 64, struct name_key);
COUNTERS(work_bytes, HASH, 256, struct bucket_key);
COUNTERS(work_linear_bytes, ARRAY, 6, __u32);
COUNTERS(work_fixed_bytes, HASH, 16, __u64);

SEC("uprobe/" VICTIM ":work")
int BPF_UPROBE(on_work, __u32 kind, __u64 size, const char *name)
{
	struct kind_key key = { .kind = kind };
	struct bucket_key bucket = { .kind = kind };
	struct name_key named = {};
	__u32 zero = 0, linear = size / 10;
	__u64 fixed = size <= 5 ? 5 : FIXED_MAX, sum = FIXED_MAX + 1;

	add(&work_total, &key, 1);
	add(&work_by_cpu_total, &kind, 1);
	add(&work_summed_total, &kind, 1);
	add(&work_runs_total, &zero, 1);
	add(&work_runs_by_cpu_total, &zero, 1);
	bpf_probe_read_user_str(named.name, sizeof(named.name), name);
	add(&names_total, &named, 1);

	while (bucket.bucket < BUCKET_MAX && (1ULL << bucket.bucket) < size)
		bucket.bucket++;
	add(&work_bytes, &bucket, 1);
	bucket.bucket = BUCKET_MAX + 1;
	add(&work_bytes, &bucket, size);
	if (linear < 6)
		add(&work_linear_bytes, &linear, 1);
	add(&work_fixed_bytes, &fixed, 1);
	add(&work_fixed_bytes, &sum, size);
	return 0;
}
