// SPDX-License-Identifier: MIT OR Apache-2.0
// One program per operation: a loop over keys that the tool has prepared, timed from within. Type and sizes of the
// map are the tool's to set. The `empty` loop has the same shape, for subtraction.
#include <linux/bpf.h>
#include <linux/types.h>
#include <bpf/bpf_helpers.h>
#include "maps_tool.h"

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 2 * KEYS);
	__uint(key_size, 4);
	__uint(value_size, 8);
} map SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 8 << 20);
} ring SEC(".maps");

const volatile __u32 key_bytes = 4;

// Where the keys lie, in the order of their use: all of them, and the first ones again.
unsigned char keys[(KEYS + (SLOTS - 1) * KEYS_APART) * KEY_BYTES_MAX];
unsigned char value[KEY_BYTES_MAX];

// Of each run: how long it took; of all: operations that succeeded. A line each.
struct {
	__u64 runs __attribute__((aligned(64)));
	__u64 succeeded __attribute__((aligned(64)));
	__u64 times[TIMES] __attribute__((aligned(64)));
} result;

// Of each producer: records sent, and those that found no room; and of these how many while half was free.
struct {
	__u64 sent __attribute__((aligned(64)));
	__u64 lost;
	__u64 lost_with_room;
} producers[PRODUCERS];

static __always_inline void note(__u64 begin, __u64 succeeded)
{
	__u64 took = bpf_ktime_get_ns() - begin;
	__u64 run = __sync_fetch_and_add(&result.runs, 1);

	result.times[run & (TIMES - 1)] = took;
	__sync_fetch_and_add(&result.succeeded, succeeded);
}

// `succeeded` begins with a number that the kernel's verifier does not know, so that it sees that both paths through
// the loop's body lead to the same state.
#define PROGRAM(name, operation)                                                                                      \
	SEC("uprobe")                                                                                                 \
	int name(void *ctx)                                                                                           \
	{                                                                                                             \
		__u32 slot = (__u32)bpf_get_current_pid_tgid() & (SLOTS - 1);                                         \
		__u32 at = slot * (KEYS_APART * key_bytes);                                                           \
		__u64 before = result.succeeded, succeeded = before;                                                  \
		__u64 begin = bpf_ktime_get_ns();                                                                     \
                                                                                                                      \
		_Pragma("clang loop unroll(disable)") for (int i = 0; i < OPERATIONS; i++, at += key_bytes)           \
		{                                                                                                     \
			void *key = keys + at;                                                                        \
                                                                                                                      \
			if (operation)                                                                                \
				succeeded++;                                                                          \
		}                                                                                                     \
		note(begin, succeeded - before);                                                                      \
		return 0;                                                                                             \
	}

static __always_inline int nothing(void *key)
{
	asm volatile("" : "+r"(key));
	return key != 0;
}

PROGRAM(empty, nothing(key))
PROGRAM(lookup, bpf_map_lookup_elem(&map, key))
PROGRAM(update, bpf_map_update_elem(&map, key, value, BPF_ANY) == 0)
PROGRAM(insert_delete,
	bpf_map_update_elem(&map, key, value, BPF_NOEXIST) == 0 && bpf_map_delete_elem(&map, key) == 0)
PROGRAM(push, bpf_map_push_elem(&map, key, BPF_ANY) == 0)
PROGRAM(peek, bpf_map_peek_elem(&map, key) == 0)
PROGRAM(push_pop, bpf_map_push_elem(&map, key, BPF_ANY) == 0 && bpf_map_pop_elem(&map, key) == 0)

// Helpers. Some read what the process has at TEXT: a string of TEXT_LENGTH bytes, in a page that is there.
#define TEXT_THERE ((const void *)TEXT)

static __always_inline int read_of(__u32 bytes)
{
	char buffer[64];

	return bpf_probe_read_user(buffer, bytes, TEXT_THERE) == 0;
}

static __always_inline int read_string(void)
{
	char buffer[64];

	return bpf_probe_read_user_str(buffer, sizeof(buffer), TEXT_THERE) == TEXT_LENGTH + 1;
}

static __always_inline int has_name(void)
{
	char name[16];

	return bpf_get_current_comm(name, sizeof(name)) == 0;
}

PROGRAM(read_8, read_of(8))
PROGRAM(read_64, read_of(64))
PROGRAM(read_str, read_string())
PROGRAM(comm, has_name())
PROGRAM(uid_gid, bpf_get_current_uid_gid() != ~0ull)
PROGRAM(pid_tgid, bpf_get_current_pid_tgid() != 0)
PROGRAM(ktime, bpf_ktime_get_ns() != 0)
PROGRAM(random, bpf_get_prandom_u32() != ~0u || key)

static __always_inline long send(__u64 *record)
{
	return bpf_ringbuf_output(&ring, record, RECORD_WORDS * 8, 0);
}

static __always_inline long reserve_and_submit(__u64 *record)
{
	__u64 *room = bpf_ringbuf_reserve(&ring, RECORD_WORDS * 8, 0);

	if (!room)
		return -1;
	for (int i = 0; i < RECORD_WORDS; i++)
		room[i] = record[i];
	bpf_ringbuf_submit(room, 0);
	return 0;
}

static __always_inline int half_is_free(void)
{
	return bpf_ringbuf_query(&ring, BPF_RB_AVAIL_DATA) < bpf_ringbuf_query(&ring, BPF_RB_RING_SIZE) / 2;
}

#define PRODUCER(name, how)                                                                                           \
	SEC("uprobe")                                                                                                 \
	int name(void *ctx)                                                                                           \
	{                                                                                                             \
		__u32 own = (__u32)bpf_get_current_pid_tgid() & (PRODUCERS - 1);                                      \
		__u64 record[RECORD_WORDS] = { own };                                                                 \
		__u64 sent = producers[own].sent, before = sent;                                                      \
		__u64 begin = bpf_ktime_get_ns();                                                                     \
                                                                                                                      \
		_Pragma("clang loop unroll(disable)") for (int i = 0; i < OPERATIONS; i++)                            \
		{                                                                                                     \
			record[1] = sent;                                                                             \
			if (how(record) == 0) {                                                                       \
				sent++;                                                                               \
			} else if (!half_is_free()) {                                                                 \
				producers[own].lost++;                                                                \
			} else if (how(record) == 0) { /* it was full, and read before we looked */                   \
				sent++;                                                                               \
			} else {                                                                                      \
				producers[own].lost++;                                                                \
				if (half_is_free())                                                                   \
					producers[own].lost_with_room++;                                              \
			}                                                                                             \
		}                                                                                                     \
		producers[own].sent = sent;                                                                           \
		note(begin, sent - before);                                                                           \
		return 0;                                                                                             \
	}

PRODUCER(output, send)
PRODUCER(reserve, reserve_and_submit)

char LICENSE[] SEC("license") = "GPL";
