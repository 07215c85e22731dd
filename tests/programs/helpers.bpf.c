// SPDX-License-Identifier: MIT OR Apache-2.0
// Calls helpers in all ways that matter and tells what they returned and wrote.
#include <linux/bpf.h>
#include <linux/ptrace.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include "tell.bpf.h"

// What a program remembers for the one at the function's return.
unsigned long long entry_sp, return_address;
char in_map[16] = "in a map";

// An address that the compiler may not put into constant data.
#define ADDRESS(of) ({ unsigned long at = (unsigned long)(of); asm volatile("" : "+r"(at)); at; })

// Runs a call that writes to `to` (24 bytes, of 0xaa before) and tells its result and those bytes.
#define WRITES(text, call)                                                           \
	do {                                                                         \
		char to[24];                                                         \
		__builtin_memset(to, 0xaa, sizeof(to));                              \
		asm volatile("" ::"r"(to) : "memory");                               \
		long result = (call);                                                \
		TELL_BYTES(text, result, to, sizeof(to));                            \
	} while (0)

#define KERNEL_ADDRESS ((void *)0xffff888000001000UL)
#define NOT_CANONICAL ((void *)0x8000000000001000UL)
#define END_OF_USER ((void *)0x00007ffffffff000UL)

#define READS(helper)                                                                \
	WRITES(#helper ": good", helper(to, 16, text));                              \
	WRITES(#helper ": 1 byte", helper(to, 1, text));                             \
	WRITES(#helper ": 0 bytes", helper(to, 0, text));                            \
	WRITES(#helper ": 0 of NULL", helper(to, 0, NULL));                          \
	WRITES(#helper ": last 8", helper(to, 8, edge));                             \
	WRITES(#helper ": over the edge", helper(to, 16, edge));                     \
	WRITES(#helper ": unmapped", helper(to, 16, edge + 8));                      \
	WRITES(#helper ": NULL", helper(to, 16, NULL));                              \
	WRITES(#helper ": 8", helper(to, 16, (void *)8));                            \
	WRITES(#helper ": no access", helper(to, 16, hidden));                       \
	WRITES(#helper ": not canonical", helper(to, 16, NOT_CANONICAL));            \
	WRITES(#helper ": end of user", helper(to, 16, END_OF_USER));                \
	WRITES(#helper ": before the end", helper(to, 16, END_OF_USER - 8))

#define STRINGS(helper)                                                              \
	WRITES(#helper ": good", helper(to, 24, text));                              \
	WRITES(#helper ": cut", helper(to, 5, text));                                \
	WRITES(#helper ": exact", helper(to, 14, text));                             \
	WRITES(#helper ": one short", helper(to, 13, text));                         \
	WRITES(#helper ": 1 byte", helper(to, 1, text));                             \
	WRITES(#helper ": 0 bytes", helper(to, 0, text));                            \
	WRITES(#helper ": empty", helper(to, 24, empty));                            \
	WRITES(#helper ": ends at edge", helper(to, 24, edge));                      \
	WRITES(#helper ": over the edge", helper(to, 24, open));                     \
	WRITES(#helper ": cut before", helper(to, 8, open));                         \
	WRITES(#helper ": unmapped", helper(to, 24, edge + 8));                      \
	WRITES(#helper ": NULL", helper(to, 24, NULL));                              \
	WRITES(#helper ": no access", helper(to, 24, hidden));                       \
	WRITES(#helper ": not canonical", helper(to, 24, NOT_CANONICAL))

SEC("uprobe")
int BPF_KPROBE(reads_user, char *text, char *edge, char *hidden)
{
	READS(bpf_probe_read_user);
	WRITES("bpf_probe_read_user: kernel", bpf_probe_read_user(to, 16, KERNEL_ADDRESS));
	return 0;
}

SEC("uprobe")
int BPF_KPROBE(reads_any, char *text, char *edge, char *hidden)
{
	READS(bpf_probe_read);
	WRITES("bpf_probe_read: map", bpf_probe_read(to, 16, in_map));
	return 0;
}

SEC("uprobe.s")
int BPF_KPROBE(copies, char *text, char *edge, char *hidden)
{
	READS(bpf_copy_from_user);
	return 0;
}

#define copy_from_task(to, bytes, from) bpf_copy_from_user_task(to, bytes, from, bpf_get_current_task_btf(), 0)

SEC("uprobe.s")
int BPF_KPROBE(copies_of_task, char *text, char *edge, char *hidden)
{
	READS(copy_from_task);
	WRITES("copy_from_task: flags", bpf_copy_from_user_task(to, 16, text, bpf_get_current_task_btf(), 1));
	WRITES("copy_from_task: 0, flags", bpf_copy_from_user_task(to, 0, text, bpf_get_current_task_btf(), 1));
	return 0;
}

SEC("uprobe")
int BPF_KPROBE(strings_user, char *text, char *edge, char *hidden, char *empty, char *open)
{
	STRINGS(bpf_probe_read_user_str);
	WRITES("user_str: kernel", bpf_probe_read_user_str(to, 24, KERNEL_ADDRESS));
	return 0;
}

SEC("uprobe")
int BPF_KPROBE(strings_any, char *text, char *edge, char *hidden, char *empty, char *open)
{
	STRINGS(bpf_probe_read_str);
	// 8 bytes with the NUL: whether the word is filled up depends on what kind of memory it is.
	WRITES("bpf_probe_read_str: map", bpf_probe_read_str(to, 24, in_map + 1));
	return 0;
}

SEC("uprobe")
int BPF_KPROBE(reads_kernel, char *text)
{
	char own[16] = "on the stack";

	WRITES("kernel: stack", bpf_probe_read_kernel(to, 16, own));
	WRITES("kernel: map", bpf_probe_read_kernel(to, 16, in_map));
	WRITES("kernel: 0 bytes", bpf_probe_read_kernel(to, 0, in_map));
	WRITES("kernel: user", bpf_probe_read_kernel(to, 16, text));
	WRITES("kernel: NULL", bpf_probe_read_kernel(to, 16, NULL));
	WRITES("kernel: not canonical", bpf_probe_read_kernel(to, 16, NOT_CANONICAL));
	WRITES("kernel_str: stack", bpf_probe_read_kernel_str(to, 24, own));
	WRITES("kernel_str: map", bpf_probe_read_kernel_str(to, 24, in_map));
	WRITES("kernel_str: cut", bpf_probe_read_kernel_str(to, 4, in_map));
	WRITES("kernel_str: 1 byte", bpf_probe_read_kernel_str(to, 1, in_map));
	WRITES("kernel_str: 0 bytes", bpf_probe_read_kernel_str(to, 0, in_map));
	WRITES("kernel_str: empty", bpf_probe_read_kernel_str(to, 24, in_map + 8));
	WRITES("kernel_str: user", bpf_probe_read_kernel_str(to, 24, text));
	WRITES("kernel_str: NULL", bpf_probe_read_kernel_str(to, 24, NULL));
	return 0;
}

#define MAP(name_, kind)                                                             \
	struct {                                                                     \
		__uint(type, kind);                                                  \
		__uint(max_entries, 2);                                              \
		__type(key, unsigned);                                               \
		__type(value, unsigned long long);                                   \
	} name_ SEC(".maps")

MAP(hash, BPF_MAP_TYPE_HASH);
MAP(array, BPF_MAP_TYPE_ARRAY);
MAP(cpu_hash, BPF_MAP_TYPE_PERCPU_HASH);
MAP(cpu_array, BPF_MAP_TYPE_PERCPU_ARRAY);

#define UPDATES(map)                                                                 \
	do {                                                                         \
		unsigned one = 0, two = 1, three = 2;                                \
		unsigned long long value = 11, *at;                                  \
		TELL(#map ": lookup", bpf_map_lookup_elem(&map, &one) != NULL);      \
		TELL(#map ": exist", bpf_map_update_elem(&map, &one, &value, BPF_EXIST)); \
		TELL(#map ": noexist", bpf_map_update_elem(&map, &one, &value, BPF_NOEXIST)); \
		value = 12;                                                          \
		TELL(#map ": noexist again", bpf_map_update_elem(&map, &one, &value, BPF_NOEXIST)); \
		at = bpf_map_lookup_elem(&map, &one);                                \
		TELL(#map ": value", at ? *at : -1);                                 \
		TELL(#map ": exist again", bpf_map_update_elem(&map, &one, &value, BPF_EXIST)); \
		TELL(#map ": flags 3", bpf_map_update_elem(&map, &one, &value, 3));  \
		TELL(#map ": flags lock", bpf_map_update_elem(&map, &one, &value, BPF_F_LOCK)); \
		TELL(#map ": flags 5", bpf_map_update_elem(&map, &one, &value, 5));  \
		TELL(#map ": flags 8", bpf_map_update_elem(&map, &one, &value, 8));  \
		TELL(#map ": flags 1 << 40", bpf_map_update_elem(&map, &one, &value, 1UL << 40)); \
		TELL(#map ": second", bpf_map_update_elem(&map, &two, &value, BPF_ANY)); \
		TELL(#map ": third", bpf_map_update_elem(&map, &three, &value, BPF_ANY)); \
		TELL(#map ": third exist", bpf_map_update_elem(&map, &three, &value, BPF_EXIST)); \
		TELL(#map ": third noexist", bpf_map_update_elem(&map, &three, &value, BPF_NOEXIST)); \
		TELL(#map ": full, update", bpf_map_update_elem(&map, &two, &value, BPF_ANY)); \
		at = bpf_map_lookup_elem(&map, &two);                                \
		if (at)                                                              \
			*at += 100;                                                  \
		at = bpf_map_lookup_elem(&map, &two);                                \
		TELL(#map ": in place", at ? *at : -1);                              \
		TELL(#map ": delete", bpf_map_delete_elem(&map, &one));              \
		TELL(#map ": delete again", bpf_map_delete_elem(&map, &one));        \
		TELL(#map ": delete beyond", bpf_map_delete_elem(&map, &three));     \
		TELL(#map ": there", bpf_map_lookup_elem(&map, &one) != NULL);       \
		TELL(#map ": beyond", bpf_map_lookup_elem(&map, &three) != NULL);    \
		TELL(#map ": room again", bpf_map_update_elem(&map, &three, &value, BPF_NOEXIST)); \
	} while (0)

SEC("uprobe")
int updates(void *ctx)
{
	UPDATES(hash);
	UPDATES(array);
	return 0;
}

SEC("uprobe")
int updates_per_cpu(void *ctx)
{
	UPDATES(cpu_hash);
	UPDATES(cpu_array);
	return 0;
}

#define KEYLESS(name_, kind)                                                         \
	struct {                                                                     \
		__uint(type, kind);                                                  \
		__uint(max_entries, 2);                                              \
		__type(value, unsigned long long);                                   \
	} name_ SEC(".maps")

KEYLESS(queue, BPF_MAP_TYPE_QUEUE);
KEYLESS(stack, BPF_MAP_TYPE_STACK);
KEYLESS(filter, BPF_MAP_TYPE_BLOOM_FILTER);

#define PUSHES(map)                                                                  \
	do {                                                                         \
		unsigned long long value = 5;                                        \
		TELL(#map ": peek empty", bpf_map_peek_elem(&map, &value));          \
		TELL(#map ": zeroed", value);                                        \
		TELL(#map ": pop empty", bpf_map_pop_elem(&map, &value));            \
		value = 1;                                                           \
		TELL(#map ": push", bpf_map_push_elem(&map, &value, BPF_ANY));       \
		value = 2;                                                           \
		TELL(#map ": push exist", bpf_map_push_elem(&map, &value, BPF_EXIST)); \
		value = 3;                                                           \
		TELL(#map ": full", bpf_map_push_elem(&map, &value, BPF_ANY));       \
		TELL(#map ": noexist", bpf_map_push_elem(&map, &value, BPF_NOEXIST)); \
		TELL(#map ": flags 3", bpf_map_push_elem(&map, &value, 3));          \
		TELL(#map ": flags 4", bpf_map_push_elem(&map, &value, 4));          \
		TELL(#map ": peek", bpf_map_peek_elem(&map, &value));                \
		TELL(#map ": peeked", value);                                        \
		value = 4;                                                           \
		TELL(#map ": replace", bpf_map_push_elem(&map, &value, BPF_EXIST));  \
		for (int i = 0; i < 3; i++) {                                        \
			TELL(#map ": pop", bpf_map_pop_elem(&map, &value));          \
			TELL(#map ": popped", value);                                \
		}                                                                    \
	} while (0)

SEC("uprobe")
int queues(void *ctx)
{
	unsigned long long value = 5;

	PUSHES(queue);
	PUSHES(stack);
	TELL("filter: peek empty", bpf_map_peek_elem(&filter, &value));
	TELL("filter: push", bpf_map_push_elem(&filter, &value, BPF_ANY));
	TELL("filter: push exist", bpf_map_push_elem(&filter, &value, BPF_EXIST));
	TELL("filter: peek", bpf_map_peek_elem(&filter, &value));
	TELL("filter: value kept", value);
	return 0;
}

// Of kernels that have it and tell of it.
struct bpf_map {};
extern long long bpf_map_sum_elem_count(const struct bpf_map *map) __weak __ksym;

#define COUNT(map) TELL("count: " #map, bpf_map_sum_elem_count((struct bpf_map *)&map))

SEC("uprobe")
int counts(void *ctx)
{
	unsigned one = 1;

	COUNT(hash);
	bpf_map_delete_elem(&hash, &one);
	COUNT(hash);
	COUNT(cpu_hash);
	COUNT(array);
	COUNT(queue);
	return 0;
}

struct prefix {
	unsigned bits;
	unsigned char data[4];
};

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 3);
	__type(key, struct prefix);
	__type(value, unsigned long long);
} trie SEC(".maps");

SEC("uprobe")
int tries(void *ctx)
{
	struct prefix net = { 8, { 10, 0, 0, 0 } }, part = { 24, { 10, 1, 2, 0 } };
	struct prefix host = { 32, { 10, 1, 2, 3 } }, other = { 32, { 10, 1, 3, 3 } }, long_ = { 33, { 10 } };
	unsigned long long value = 8, *at;

#define PUT(text, key, flags) TELL("trie: " text, bpf_map_update_elem(&trie, key, &value, flags))
#define GET(text, key)                                                               \
	do {                                                                         \
		at = bpf_map_lookup_elem(&trie, key);                                \
		TELL("trie: " text, at ? *at : -1);                                  \
	} while (0)
	GET("empty", &host);
	PUT("exist", &net, BPF_EXIST);
	PUT("net", &net, BPF_NOEXIST);
	PUT("net again", &net, BPF_NOEXIST);
	PUT("flags 3", &net, 3);
	PUT("flags lock", &net, BPF_F_LOCK);
	PUT("flags 1 << 40", &net, 1UL << 40);
	PUT("too long", &long_, BPF_ANY);
	GET("host by net", &host);
	value = 24;
	PUT("part", &part, BPF_ANY);
	GET("host by part", &host);
	GET("other by net", &other);
	GET("too long", &long_);
	value = 32;
	PUT("other", &other, BPF_ANY);
	PUT("full", &host, BPF_ANY);
	PUT("full, update", &part, BPF_EXIST);
	at = bpf_map_lookup_elem(&trie, &host);
	if (at)
		*at += 100;
	GET("in place", &host);
	TELL("trie: delete", bpf_map_delete_elem(&trie, &part));
	TELL("trie: delete again", bpf_map_delete_elem(&trie, &part));
	TELL("trie: delete too long", bpf_map_delete_elem(&trie, &long_));
	GET("host by net again", &host);
	PUT("room again", &host, BPF_NOEXIST);
	GET("host", &host);
	return 0;
}

SEC("uprobe")
int lookups_of_cpus(void *ctx)
{
	unsigned one = 1, beyond = 2, own = bpf_get_smp_processor_id();
	unsigned long long value = 77, *at;

#define CPUS(map)                                                                    \
	do {                                                                         \
		bpf_map_update_elem(&map, &one, &value, BPF_ANY);                    \
		at = bpf_map_lookup_percpu_elem(&map, &one, own);                    \
		TELL(#map ": of this cpu", at ? *at : -1);                           \
		TELL(#map ": the same", at && at == bpf_map_lookup_elem(&map, &one)); \
		at = bpf_map_lookup_percpu_elem(&map, &one, own ? 0 : 1);            \
		TELL(#map ": of another cpu", at ? *at : -1);                        \
		TELL(#map ": of no cpu", bpf_map_lookup_percpu_elem(&map, &one, 8192) != NULL); \
		TELL(#map ": of cpu -1", bpf_map_lookup_percpu_elem(&map, &one, ~0u) != NULL); \
		TELL(#map ": no element", bpf_map_lookup_percpu_elem(&map, &beyond, own) != NULL); \
	} while (0)
	bpf_map_delete_elem(&cpu_hash, &one);
	CPUS(cpu_hash);
	CPUS(cpu_array);
	return 0;
}

struct {
	__uint(type, BPF_MAP_TYPE_STACK_TRACE);
	__uint(max_entries, 1);
	__uint(key_size, 4);
	__uint(value_size, 5 * 8);
} trace SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_STACK_TRACE);
	__uint(max_entries, 1000);
	__uint(key_size, 4);
	__uint(value_size, 127 * 8);
} traces SEC(".maps");

// Addresses are told from here on: the victim's `chained`.
unsigned long long stack_base;
unsigned long long frames[160];

#define UNTOUCHED 0xaaaaaaaaaaaaaaaaULL

static __always_inline void tell_frames(void)
{
	for (int i = 0; i < 6; i++)
		TELL("  frame", frames[i] == UNTOUCHED ? -1 : frames[i] ? frames[i] - stack_base : 0);
}

#define STACK(text, size, flags)                                                     \
	do {                                                                         \
		__builtin_memset(frames, 0xaa, 8 * 8);                               \
		TELL("stack " text, bpf_get_stack(ctx, frames, size, flags));        \
		tell_frames();                                                       \
	} while (0)
#define STACK_FAILS(text, size, flags)                                               \
	do {                                                                         \
		__builtin_memset(frames, 0xaa, 8 * 8);                               \
		TELL("stack " text, bpf_get_stack(ctx, frames, size, flags));        \
		TELL("  first", frames[0]);                                          \
	} while (0)
#define STACK_ID(text, map, flags) TELL("stack id " text, bpf_get_stackid(ctx, &map, flags))

#define TASK_STACK(text, size, flags)                                                \
	do {                                                                         \
		__builtin_memset(frames, 0xaa, 8 * 8);                               \
		TELL("task stack " text, bpf_get_task_stack(bpf_get_current_task_btf(), frames, size, flags)); \
		tell_frames();                                                       \
	} while (0)
#define TASK_STACK_FAILS(text, size, flags)                                          \
	do {                                                                         \
		__builtin_memset(frames, 0xaa, 8 * 8);                               \
		TELL("task stack " text, bpf_get_task_stack(bpf_get_current_task_btf(), frames, size, flags)); \
		TELL("  first", frames[0]);                                          \
	} while (0)

// It does not look at the context.
SEC("uprobe")
int stacks_of_task(void *ctx)
{
	TASK_STACK("whole", sizeof(frames), BPF_F_USER_STACK);
	TASK_STACK("of 3", 24, BPF_F_USER_STACK);
	TASK_STACK("but 1", sizeof(frames), BPF_F_USER_STACK | 1);
	TASK_STACK("2 but 1", 16, BPF_F_USER_STACK | 1);
	TASK_STACK_FAILS("but more", sizeof(frames), BPF_F_USER_STACK | 6);
	TASK_STACK_FAILS("odd", 20, BPF_F_USER_STACK);
	TASK_STACK_FAILS("of ids, odd", 24, BPF_F_USER_STACK | BPF_F_USER_BUILD_ID);
	TELL("task stack of ids",
	     bpf_get_task_stack(bpf_get_current_task_btf(), frames, 3 * 32, BPF_F_USER_STACK | BPF_F_USER_BUILD_ID));
	TASK_STACK_FAILS("of the kernel, odd", 20, 0);
	TASK_STACK_FAILS("of the kernel with ids", 64, BPF_F_USER_BUILD_ID);
	TASK_STACK_FAILS("of the kernel but 255", 64, 255);
	TASK_STACK_FAILS("flags", sizeof(frames), BPF_F_USER_STACK | BPF_F_REUSE_STACKID);
	TASK_STACK_FAILS("flags 1 << 40", sizeof(frames), BPF_F_USER_STACK | 1UL << 40);
	return 0;
}

SEC("uretprobe")
int stacks_of_task_after(void *ctx)
{
	TASK_STACK("after", sizeof(frames), BPF_F_USER_STACK);
	return 0;
}

SEC("uprobe")
int stacks(struct pt_regs *ctx)
{
	long first, second;

	stack_base = PT_REGS_PARM1(ctx);
	STACK("whole", sizeof(frames), BPF_F_USER_STACK);
	STACK("of 3", 24, BPF_F_USER_STACK);
	STACK("but 1", sizeof(frames), BPF_F_USER_STACK | 1);
	STACK("2 but 1", 16, BPF_F_USER_STACK | 1);
	STACK("but all", sizeof(frames), BPF_F_USER_STACK | 5);
	STACK_FAILS("but more", sizeof(frames), BPF_F_USER_STACK | 6);
	STACK_FAILS("odd", 20, BPF_F_USER_STACK);
	STACK_FAILS("of ids, odd", 24, BPF_F_USER_STACK | BPF_F_USER_BUILD_ID);
	// What is in an entry differs: here they have no build ids.
	TELL("stack of ids", bpf_get_stack(ctx, frames, 3 * 32, BPF_F_USER_STACK | BPF_F_USER_BUILD_ID));
	STACK_FAILS("of the kernel", sizeof(frames), 0);
	STACK_FAILS("of the kernel but 1", sizeof(frames), 1);
	STACK_FAILS("of the kernel with ids", 64, BPF_F_USER_BUILD_ID);
	STACK_FAILS("flags", sizeof(frames), BPF_F_USER_STACK | BPF_F_REUSE_STACKID);
	STACK_FAILS("flags 1 << 40", sizeof(frames), BPF_F_USER_STACK | 1UL << 40);
	STACK_ID("flags", trace, BPF_F_USER_STACK | BPF_F_USER_BUILD_ID);
	STACK_ID("of the kernel", trace, 0);
	STACK_ID("but all", trace, BPF_F_USER_STACK | 5);
	STACK_ID("but more", trace, BPF_F_USER_STACK | 255);
	STACK_ID("whole", trace, BPF_F_USER_STACK);
	STACK_ID("whole again", trace, BPF_F_USER_STACK);
	STACK_ID("fast", trace, BPF_F_USER_STACK | BPF_F_FAST_STACK_CMP);
	STACK_ID("another", trace, BPF_F_USER_STACK | 1);
	STACK_ID("another, fast", trace, BPF_F_USER_STACK | BPF_F_FAST_STACK_CMP | 1);
	// The only place is in use, also for what would replace it.
	STACK_ID("another instead", trace, BPF_F_USER_STACK | BPF_F_REUSE_STACKID | 1);
	first = bpf_get_stackid(ctx, &traces, BPF_F_USER_STACK);
	second = bpf_get_stackid(ctx, &traces, BPF_F_USER_STACK);
	TELL("stack id in range", first >= 0 && first < 1024 && first == second);
	return 0;
}

// Not of `stacks` too: while one of two returns by the same slot is handled, the kernel shows its address twice.
SEC("uretprobe")
int hopped_after(struct pt_regs *ctx)
{
	STACK("after hopped", sizeof(frames), BPF_F_USER_STACK);
	return 0;
}

SEC("uretprobe")
int chain_middle_after(struct pt_regs *ctx)
{
	STACK("after chain_middle", sizeof(frames), BPF_F_USER_STACK);
	return 0;
}

SEC("uretprobe")
int chain_outer_after(struct pt_regs *ctx)
{
	STACK("after chain_outer", sizeof(frames), BPF_F_USER_STACK);
	return 0;
}

SEC("uprobe")
int stacks_bare(struct pt_regs *ctx)
{
	// Begins with another instruction: the caller is not found.
	STACK("bare", sizeof(frames), BPF_F_USER_STACK);
	return 0;
}

SEC("uprobe")
int stacks_deep(struct pt_regs *ctx)
{
	STACK("deep", sizeof(frames), BPF_F_USER_STACK);
	TELL("last", frames[126] - stack_base);
	TELL("behind", frames[127]);
	STACK("deep but 100", sizeof(frames), BPF_F_USER_STACK | 100);
	STACK_FAILS("deep but 200", sizeof(frames), BPF_F_USER_STACK | 200);
	// (Another stack may have its bucket: 1 time in a few hundred.)
	TELL("stack id deep", bpf_get_stackid(ctx, &traces, BPF_F_USER_STACK | BPF_F_REUSE_STACKID) >= 0);
	return 0;
}

SEC("uprobe")
int stacks_broken(struct pt_regs *ctx)
{
	STACK("broken", sizeof(frames), BPF_F_USER_STACK);
	return 0;
}

SEC("uprobe")
int BPF_KPROBE(who, unsigned long pid, unsigned long tid, unsigned long uid, unsigned long gid)
{
	unsigned long long ids = bpf_get_current_pid_tgid();

	TELL("process", (ids >> 32) == pid);
	TELL("thread", (unsigned)ids == tid);
	TELL("user and group", bpf_get_current_uid_gid() == (gid << 32 | uid));
	WRITES("comm", bpf_get_current_comm(to, 16));
	WRITES("comm of 24", bpf_get_current_comm(to, 24));
	WRITES("comm of 4", bpf_get_current_comm(to, 4));
	WRITES("comm of 1", bpf_get_current_comm(to, 1));
	return 0;
}

SEC("uprobe")
int registers(struct pt_regs *ctx)
{
	unsigned long long top = 0;

	TELL("first", PT_REGS_PARM1(ctx));
	TELL("second", PT_REGS_PARM2(ctx));
	TELL("third", PT_REGS_PARM3(ctx));
	TELL("fourth", PT_REGS_PARM4(ctx));
	TELL("fifth", PT_REGS_PARM5(ctx));
	TELL("cookie", bpf_get_attach_cookie(ctx));
	TELL("ip - function", PT_REGS_IP(ctx) - ctx->r9);
	TELL("func_ip - function", bpf_get_func_ip(ctx) - ctx->r9);
	entry_sp = PT_REGS_SP(ctx);
	TELL("sp % 16", entry_sp % 16);
	TELL("read at sp", bpf_probe_read_user(&top, 8, (void *)entry_sp));
	return_address = top;
	TELL("cs", ctx->cs);
	TELL("ss", ctx->ss);
	return 0;
}

SEC("uretprobe")
int registers_after(struct pt_regs *ctx)
{
	TELL("cookie after", bpf_get_attach_cookie(ctx));
	TELL("sp after - sp", PT_REGS_SP(ctx) - entry_sp);
	TELL("ip after - return", PT_REGS_IP(ctx) - return_address);
	TELL("func_ip after - rax", bpf_get_func_ip(ctx) - PT_REGS_RC(ctx));
	return 0;
}

#define TASK_REGS ((struct pt_regs *)bpf_task_pt_regs(bpf_get_current_task_btf()))
#define TELL_KEPT(when, from)                                                        \
	do {                                                                         \
		TELL("rbx " when, (from)->rbx);                                      \
		TELL("rbp " when, (from)->rbp);                                      \
		TELL("r12 " when, (from)->r12);                                      \
		TELL("r13 " when, (from)->r13);                                      \
		TELL("r14 " when, (from)->r14);                                      \
		TELL("r15 " when, (from)->r15);                                      \
		TELL("orig_rax " when, (from)->orig_rax);                            \
	} while (0)

SEC("uprobe")
int kept(struct pt_regs *ctx)
{
	TELL_KEPT("on entry", ctx);
	return 0;
}

SEC("uretprobe")
int kept_after(struct pt_regs *ctx)
{
	TELL_KEPT("on return", ctx);
	return 0;
}

// The registers are read by a helper that takes any address.
SEC("uprobe")
int kept_read(struct pt_regs *ctx)
{
	struct pt_regs copy;

	TELL("read registers", bpf_probe_read_kernel(&copy, sizeof(copy), ctx));
	TELL_KEPT("as read", &copy);
	return 0;
}

// They do not look at the context.
static __noinline int tell_regs_of_task(int copies)
{
	struct pt_regs copy, *regs = TASK_REGS;

	TELL("task's rdi", regs->rdi);
	TELL("task's rdi, its lower half", *(unsigned *)&regs->rdi);
	TELL("task's rip - rdx", regs->rip - regs->rdx);
	TELL("task's cs", regs->cs);
	TELL("task's ss", regs->ss);
	TELL_KEPT("of the task", regs);
	if (copies) {
		TELL("copy", bpf_probe_read_kernel(&copy, sizeof(copy), regs));
		TELL_KEPT("of the copy", &copy);
	}
	return 0;
}

SEC("uprobe")
int kept_task(void *ctx)
{
	return tell_regs_of_task(1);
}

SEC("uretprobe")
int kept_task_after(void *ctx)
{
	return tell_regs_of_task(0);
}

SEC("uprobe")
int kept_both(struct pt_regs *ctx)
{
	struct pt_regs *regs = TASK_REGS, copy;
	char same = 1;

	TELL("task's sp - sp", regs->rsp - ctx->rsp);
	TELL("task's ip - ip", regs->rip - ctx->rip);
	TELL("task's flags ^ flags", regs->eflags ^ ctx->eflags);
	TELL("task's rdx - rdx", regs->rdx - ctx->rdx);
	TELL("read task's", bpf_probe_read_kernel(&copy, sizeof(copy), regs));
#pragma unroll
	for (int i = 0; i < (int)(sizeof(copy) / 8); i++)
		same &= ((unsigned long *)&copy)[i] == ((unsigned long *)ctx)[i];
	TELL("task's are the context's", same);
	return 0;
}

SEC("uprobe")
int BPF_KPROBE(texts, char *user)
{
	static const char format_numbers[] = "%d %i %u %x %X|%5d|%-5d|%05d|%+d|% d|%%";
	static const char format_longs[] = "%ld %lu %lx %lld %llu %llx %llX";
	static const char format_strings[] = "%s|%pks|%pus|%s|%c";
	static const char format_widths[] = "%12s|%-12s|";
	static const char format_pointers[] = "%px %pi4 %pI4";
	static const char format_plain[] = "plain text";
	static const char format_ip6[] = "%pi6 %pI6";
	static const unsigned char ip6[16] = { 0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 0, 1 };
	unsigned char ip4[4] = { 192, 168, 0, 1 };
	char small[8] = "abc";
	char out[DATA_BYTES];
	long done;

#define FORMATS(text, format, ...)                                                   \
	do {                                                                         \
		unsigned long long data[] = { __VA_ARGS__ };                         \
		__builtin_memset(out, 0xaa, sizeof(out));                            \
		done = bpf_snprintf(out, sizeof(out), format, data, sizeof(data));   \
		TELL_BYTES(text, done, out, sizeof(out));                            \
	} while (0)
	FORMATS("numbers", format_numbers, -1, -2, -3, 0xabcdef, 0xabcdef, 42, 42, 42, 42, 42);
	FORMATS("longs", format_longs, -1, -1, -1, -5, 1ULL << 63, 1ULL << 40, 0xabcULL << 40);
	FORMATS("strings", format_strings, ADDRESS(in_map), ADDRESS(in_map), ADDRESS(user), 0, 'x');
	FORMATS("widths", format_widths, ADDRESS(in_map), ADDRESS(in_map));
	FORMATS("pointers", format_pointers, 0x1234567, ADDRESS(ip4), ADDRESS(ip4));
	FORMATS("ip6", format_ip6, ADDRESS(ip6), ADDRESS(ip6));
	__builtin_memset(out, 0xaa, sizeof(out));
	done = bpf_snprintf(out, 6, format_plain, NULL, 0);
	TELL_BYTES("cut", done, out, 16);
	__builtin_memset(out, 0xaa, sizeof(out));
	done = bpf_snprintf(out, 1, format_plain, NULL, 0);
	TELL_BYTES("cut to 1", done, out, 16);
	__builtin_memset(out, 0xaa, sizeof(out));
	done = bpf_snprintf(out, sizeof(out), format_plain, NULL, 0);
	TELL_BYTES("plain", done, out, 16);
	TELL("nowhere", bpf_snprintf(NULL, 0, format_plain, NULL, 0));

	TELL("strncmp equal", bpf_strncmp(small, sizeof(small), "abc"));
	TELL("strncmp less", bpf_strncmp(small, sizeof(small), "abd"));
	TELL("strncmp greater", bpf_strncmp(small, sizeof(small), "abA"));
	TELL("strncmp longer", bpf_strncmp(small, sizeof(small), "abcd"));
	TELL("strncmp shorter", bpf_strncmp(small, sizeof(small), "ab"));
	TELL("strncmp prefix", bpf_strncmp(small, 2, "abXX"));
	TELL("strncmp empty", bpf_strncmp(small, sizeof(small), ""));
	small[0] = 0xf0;
	TELL("strncmp high", bpf_strncmp(small, sizeof(small), "abc"));
	return 0;
}

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} ring SEC(".maps");

#define RESERVES(text, size)                                                         \
	do {                                                                         \
		char *record = bpf_ringbuf_reserve(&ring, size, 0);                  \
		TELL(text, record != NULL);                                          \
		if (record) {                                                        \
			__builtin_memset(record, 's', 4);                            \
			bpf_ringbuf_submit(record, 0);                               \
		}                                                                    \
	} while (0)

SEC("uprobe")
int rings(void *ctx)
{
	char data[16] = "some data";
	char *record, *second;

	TELL("ring size", bpf_ringbuf_query(&ring, BPF_RB_RING_SIZE));
	TELL("available", bpf_ringbuf_query(&ring, BPF_RB_AVAIL_DATA));
	TELL("consumed", bpf_ringbuf_query(&ring, BPF_RB_CONS_POS));
	TELL("produced", bpf_ringbuf_query(&ring, BPF_RB_PROD_POS));
	TELL("unknown", bpf_ringbuf_query(&ring, 99));
	TELL("output 16", bpf_ringbuf_output(&ring, data, 16, 0));
	TELL("output 1", bpf_ringbuf_output(&ring, data, 1, BPF_RB_NO_WAKEUP));
	TELL("output 0", bpf_ringbuf_output(&ring, data, 0, BPF_RB_FORCE_WAKEUP));
	TELL("output flags 4", bpf_ringbuf_output(&ring, data, 8, 4));
	RESERVES("reserve 8", 8);
	RESERVES("reserve 13", 13);
	record = bpf_ringbuf_reserve(&ring, 32, 0);
	second = bpf_ringbuf_reserve(&ring, 32, 0);
	TELL("apart", second - record);
	if (record)
		bpf_ringbuf_discard(record, 0);
	if (second) {
		__builtin_memcpy(second, "second", 7);
		bpf_ringbuf_submit(second, BPF_RB_NO_WAKEUP);
	}
	record = bpf_ringbuf_reserve(&ring, 24, 1);
	TELL("reserve with flags", record != NULL);
	if (record)
		bpf_ringbuf_discard(record, 0);
	RESERVES("reserve the ring", 4096);
	RESERVES("reserve too much", 4089);
	TELL("available after", bpf_ringbuf_query(&ring, BPF_RB_AVAIL_DATA));
	TELL("produced after", bpf_ringbuf_query(&ring, BPF_RB_PROD_POS));
	RESERVES("reserve a lot", 3000);
	RESERVES("reserve a lot again", 3000);
	TELL("output when full", bpf_ringbuf_output(&ring, results, 2000, 0));
	TELL("produced at the end", bpf_ringbuf_query(&ring, BPF_RB_PROD_POS));
	return 0;
}

struct {
	__uint(type, BPF_MAP_TYPE_PERF_EVENT_ARRAY);
	__type(key, unsigned);
	__type(value, unsigned);
} events SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERF_EVENT_ARRAY);
	__uint(max_entries, 2);
	__type(key, unsigned);
	__type(value, unsigned);
} nobody SEC(".maps");

// Its events get buffers after they are put in.
struct {
	__uint(type, BPF_MAP_TYPE_PERF_EVENT_ARRAY);
	__type(key, unsigned);
	__type(value, unsigned);
} late SEC(".maps");

// Events that nobody maps.
struct {
	__uint(type, BPF_MAP_TYPE_PERF_EVENT_ARRAY);
	__type(key, unsigned);
	__type(value, unsigned);
} mute SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_CGROUP_ARRAY);
	__uint(max_entries, 2);
	__type(key, unsigned);
	__type(value, unsigned);
} groups SEC(".maps");

unsigned long long sequence;

SEC("uprobe")
int outputs(void *ctx)
{
	unsigned long long data[8] = { ++sequence, 1, 2, 3, 4, 5, 6, 7 };

	TELL("output 8", bpf_perf_event_output(ctx, &events, BPF_F_CURRENT_CPU, data, 8));
	TELL("output 13", bpf_perf_event_output(ctx, &events, BPF_F_CURRENT_CPU, data, 13));
	TELL("output 64", bpf_perf_event_output(ctx, &events, BPF_F_CURRENT_CPU, data, 64));
	TELL("output 0", bpf_perf_event_output(ctx, &events, BPF_F_CURRENT_CPU, data, 0));
	TELL("output beyond", bpf_perf_event_output(ctx, &events, 4000, data, 8));
	TELL("output flags", bpf_perf_event_output(ctx, &events, 1ULL << 32, data, 8));
	TELL("output to nobody", bpf_perf_event_output(ctx, &nobody, BPF_F_CURRENT_CPU, data, 8));
	TELL("output late", bpf_perf_event_output(ctx, &late, BPF_F_CURRENT_CPU, data, 8));
	TELL("output without a buffer", bpf_perf_event_output(ctx, &mute, BPF_F_CURRENT_CPU, data, 8));
	TELL("output beyond nobody", bpf_perf_event_output(ctx, &nobody, 2, data, 8));
	TELL("cgroup unset", bpf_current_task_under_cgroup(&groups, 0));
	TELL("cgroup beyond", bpf_current_task_under_cgroup(&groups, 2));
	return 0;
}

// Reads a number, of either kind, from a text in the program's own memory.
#define NUMBER(text, flags)                                                          \
	do {                                                                         \
		char of[] = text;                                                    \
		long value = 7;                                                      \
		unsigned long plain = 7;                                             \
		long result;                                                         \
		asm volatile("" ::"r"(of) : "memory");                               \
		result = bpf_strtol(of, sizeof(of) - 1, flags, &value);              \
		TELL_BYTES("strtol " text ", " #flags, result, &value, 8);           \
		result = bpf_strtoul(of, sizeof(of) - 1, flags, &plain);             \
		TELL_BYTES("strtoul " text ", " #flags, result, &plain, 8);          \
	} while (0)

SEC("uprobe")
int numbers(void *ctx)
{
	NUMBER("12", 0);
	NUMBER("12", 8);
	NUMBER("19", 8);
	NUMBER("ff", 16);
	NUMBER("fg", 16);
	NUMBER("g", 16);
	NUMBER("0x1F z", 0);
	NUMBER("0x1F", 16);
	NUMBER("0x", 0);
	NUMBER("0x", 16);
	NUMBER("077", 0);
	NUMBER(" \t 5 6", 10);
	NUMBER("   ", 0);
	NUMBER("-", 0);
	NUMBER("- 5", 0);
	NUMBER("-5", 0);
	NUMBER("+5", 0);
	NUMBER("-0", 0);
	NUMBER("5", 2);
	NUMBER("5", 32);
	NUMBER("9223372036854775807", 0);
	NUMBER("9223372036854775808", 0);
	NUMBER("-9223372036854775808", 0);
	NUMBER("-9223372036854775809", 0);
	NUMBER("18446744073709551615", 10);
	NUMBER("18446744073709551616", 10);
	return 0;
}

SEC("uprobe")
int BPF_KPROBE(clocks, unsigned long cpus)
{
	unsigned long long first = bpf_ktime_get_ns(), boot = bpf_ktime_get_boot_ns(), second = bpf_ktime_get_ns();
	unsigned long long tai = bpf_ktime_get_tai_ns();
	unsigned all = ~0u, any = 0;

	TELL("time goes on", first <= second && first > 0);
	TELL("boot after monotonic", boot >= first);
	TELL("tai is a date", tai > 1600000000000000000ULL);
	TELL("cpu in range", bpf_get_smp_processor_id() < cpus);
	TELL("node", bpf_get_numa_node_id());
	for (int i = 0; i < 32; i++) {
		unsigned random = bpf_get_prandom_u32();
		all &= random;
		any |= random;
	}
	TELL("random bits", any == ~0u && all == 0);
	TELL("32 bits", bpf_get_prandom_u32() <= ~0u);
	TELL("printed", bpf_printk("helpers: %d", 5));
	return 0;
}

SEC("uprobe")
int BPF_KPROBE(writes, char *text, char *constant, char *edge, char *hidden)
{
	char data[16] = "from a program";

	TELL("write", bpf_probe_write_user(text, data, 14));
	TELL("write read-only", bpf_probe_write_user(constant, data, 14));
	TELL("write over the edge", bpf_probe_write_user(edge, data, 16));
	TELL("write hidden", bpf_probe_write_user(hidden, data, 8));
	TELL("write NULL", bpf_probe_write_user(NULL, data, 8));
	TELL("write kernel", bpf_probe_write_user(KERNEL_ADDRESS, data, 8));
	TELL("write end of user", bpf_probe_write_user(END_OF_USER, data, 8));
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
