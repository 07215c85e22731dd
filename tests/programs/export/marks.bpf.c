// SPDX-License-Identifier: MIT OR Apache-2.0
// Arguments of static probes of `tests/victims/marked.c`: registers, memory and constants.
#include "export.bpf.h"
#include <bpf/usdt.bpf.h>

struct guarded_key {
	__s64 small, third;
	__u32 byte, constant;
};

COUNTERS(guarded_total, HASH, 64, struct guarded_key);
COUNTERS(shared_total, HASH, 64, __u64);
COUNTERS(guarded_values, HASH, 64, __u64);

SEC("usdt/" MARKED ":ring3:guarded")
int BPF_USDT(on_guarded, int value, void *memory, short small, unsigned char byte, long constant, long third)
{
	struct guarded_key key = { .small = small, .third = third, .byte = byte, .constant = -constant };
	__u64 bucket = value;

	add(&guarded_total, &key, 1);
	add(&guarded_values, &bucket, 1);
	return 0;
}

SEC("usdt/" MARKED ":ring3:shared")
int BPF_USDT(on_shared, int value)
{
	__u64 key = value == -1 ? 1000 : value;

	add(&shared_total, &key, 1);
	return 0;
}
