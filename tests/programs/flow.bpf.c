// SPDX-License-Identifier: MIT OR Apache-2.0
// Programs that go on with other programs, call subprograms through helpers, and find maps in maps.
#include <linux/bpf.h>
#include <linux/ptrace.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>
#include "tell.bpf.h"

extern __u64 bpf_dynptr_size(const struct bpf_dynptr *ptr) __ksym;
extern int bpf_dynptr_is_null(const struct bpf_dynptr *ptr) __ksym;
extern int bpf_dynptr_is_rdonly(const struct bpf_dynptr *ptr) __ksym;

// ---- tail calls ----

int goes_on(struct pt_regs *ctx);
int ends(struct pt_regs *ctx);
int repeats(struct pt_regs *ctx);
int answers(struct pt_regs *ctx);

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 8);
	__uint(key_size, 4);
	__array(values, int(void *));
} jumps SEC(".maps") = {
	.values = { [0] = (void *)&goes_on, [1] = (void *)&ends, [2] = (void *)&repeats, [3] = (void *)&answers },
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, unsigned);
	__type(value, unsigned long long);
} passes SEC(".maps");

unsigned rounds;

SEC("uprobe")
int tails(struct pt_regs *ctx)
{
	TELL("tails: begins", PT_REGS_PARM1(ctx));
	bpf_tail_call(ctx, &jumps, 5);
	TELL("tails: an empty place", 0);
	bpf_tail_call(ctx, &jumps, 8);
	TELL("tails: behind the end", 0);
	bpf_tail_call(ctx, &jumps, 0xffffffff);
	bpf_tail_call(ctx, &jumps, 0);
	TELL("tails: not reached", 0);
	return 0;
}

SEC("uprobe")
int goes_on(struct pt_regs *ctx)
{
	unsigned zero = 0;
	unsigned long long *passed = bpf_map_lookup_elem(&passes, &zero);

	if (passed)
		++*passed;
	TELL("goes_on", PT_REGS_PARM1(ctx));
	bpf_tail_call(ctx, &jumps, 1);
	TELL("goes_on: not reached", 0);
	return 0;
}

SEC("uprobe")
int ends(struct pt_regs *ctx)
{
	unsigned long index = PT_REGS_PARM1(ctx);

	TELL("ends", index);
	// A place that is only known at run time.
	bpf_tail_call(ctx, &jumps, index + 60);
	return 0;
}

SEC("uprobe")
int repeated(struct pt_regs *ctx)
{
	rounds = 0;
	bpf_tail_call(ctx, &jumps, 2);
	return 0;
}

SEC("uprobe")
int repeats(struct pt_regs *ctx)
{
	rounds++;
	bpf_tail_call(ctx, &jumps, 2);
	TELL("repeats: as often as may be", rounds);
	bpf_tail_call(ctx, &jumps, 1);
	TELL("repeats: the limit holds for all", rounds);
	return 0;
}

SEC("uprobe")
int answers(struct pt_regs *ctx)
{
	TELL("answers", PT_REGS_PARM1(ctx));
	return 42;
}

static __attribute__((noinline)) int asks(struct pt_regs *ctx, int place)
{
	int own = 7;

	// The compiler believes that this is the only end.
	asm volatile("" : "+r"(own));
	bpf_tail_call(ctx, &jumps, place);
	return own;
}

SEC("uprobe")
int asked(struct pt_regs *ctx)
{
	TELL("asked: a subprogram's tail call", asks(ctx, 3));
	TELL("asked: of an empty place", asks(ctx, 5));
	TELL("asked: again", asks(ctx, 3));
	return 0;
}

// ---- maps of maps ----

struct counters {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4);
	__type(key, unsigned);
	__type(value, unsigned long long);
};

struct counters first SEC(".maps"), second SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 3);
	__type(key, unsigned);
	__array(values, struct counters);
} by_index SEC(".maps") = { .values = { [0] = &first, [1] = &second } };

struct cells {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2);
	__type(key, unsigned);
	__type(value, unsigned long long);
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH_OF_MAPS);
	__uint(max_entries, 3);
	__type(key, unsigned long long);
	__array(values, struct cells);
} by_name SEC(".maps");

static __attribute__((noinline)) int tries(unsigned index, unsigned key)
{
	void *map = bpf_map_lookup_elem(&by_index, &index);
	unsigned long long value = 100 + index, *found;

	if (!map) {
		TELL("inner: no map at", index);
		return 0;
	}
	TELL("inner: added", bpf_map_update_elem(map, &key, &value, BPF_NOEXIST));
	found = bpf_map_lookup_elem(map, &key);
	TELL("inner: found", found ? *found : -1);
	key = 77;
	TELL("inner: deleted", bpf_map_delete_elem(map, &key));
	TELL("inner: last", bpf_map_update_elem(map, &key, &value, BPF_EXIST));
	return 0;
}

SEC("uprobe")
int inner(struct pt_regs *ctx)
{
	unsigned key = PT_REGS_PARM1(ctx);

	tries(0, key);
	tries(1, key);
	tries(2, key);
	tries(3, key);
	return 0;
}

static __attribute__((noinline)) int calls(unsigned long long name)
{
	void *map = bpf_map_lookup_elem(&by_name, &name);
	unsigned long long *cell;
	unsigned one = 1;

	cell = map ? bpf_map_lookup_elem(map, &one) : 0;
	if (cell)
		*cell += 5;
	TELL("named", cell ? (long long)*cell : -1);
	return 0;
}

SEC("uprobe")
int named(struct pt_regs *ctx)
{
	calls(0);
	calls(1);
	calls(2);
	calls(3);
	return 0;
}

// ---- callbacks ----

// In a map: on the stack the verifier would follow every sum.
unsigned long long total, left;

struct step {
	unsigned long long width;
};

static long adds(unsigned long index, struct step *step)
{
	total += index * step->width;
	return left-- == 1;
}

static long nests(unsigned long index, struct step *step)
{
	struct step own = { .width = 2 };

	bpf_loop(index, adds, &own, 0);
	return 0;
}

struct bpf_iter_num {
	unsigned long long opaque;
} __attribute__((aligned(8)));

extern int bpf_iter_num_new(struct bpf_iter_num *it, int start, int end) __weak __ksym;
extern int *bpf_iter_num_next(struct bpf_iter_num *it) __weak __ksym;
extern void bpf_iter_num_destroy(struct bpf_iter_num *it) __weak __ksym;

/* The sum of the numbers from start to before end. */
static __attribute__((noinline)) long numbers(int start, int end)
{
	struct bpf_iter_num it;
	long sum = 0;
	int *number;

	TELL("numbers: begin", bpf_iter_num_new(&it, start, end));
	while ((number = bpf_iter_num_next(&it)))
		sum += *number;
	TELL("numbers: none left", bpf_iter_num_next(&it) != 0);
	bpf_iter_num_destroy(&it);
	return sum;
}

SEC("uprobe")
int looped(struct pt_regs *ctx)
{
	struct step step = { .width = 1 };

	total = left = 0;
	TELL("loop: none", bpf_loop(0, adds, &step, 0));
	TELL("loop: 1000", bpf_loop(1000, adds, &step, 0));
	TELL("loop: sum", total);
	left = 10;
	TELL("loop: ended", bpf_loop(1000, adds, &step, 0));
	TELL("loop: sum", total);
	TELL("loop: as many as may be", bpf_loop(1 << 23, adds, &step, 0));
	TELL("loop: more", bpf_loop((1 << 23) + 1, adds, &step, 0));
	TELL("loop: flags", bpf_loop(1, adds, &step, 1));
	total = 0;
	TELL("loop: nested", bpf_loop(100, nests, &step, 0));
	TELL("loop: sum", total);
	TELL("numbers: 0 to 10", numbers(0, 10));
	TELL("numbers: -3 to 3", numbers(-3, 3));
	TELL("numbers: none", numbers(5, 5));
	TELL("numbers: backwards", numbers(7, 3));
	TELL("numbers: as many as may be", numbers(0, 1 << 23));
	TELL("numbers: more", numbers(0, (1 << 23) + 1));
	TELL("numbers: all", numbers(-0x7fffffff - 1, 0x7fffffff));
	return 0;
}

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 64);
	__type(key, unsigned);
	__type(value, unsigned long long);
} walked SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_PERCPU_HASH);
	__uint(max_entries, 64);
	__type(key, unsigned);
	__type(value, unsigned long long);
} walked_per_cpu SEC(".maps");

struct cells cells SEC(".maps");

static long visits(void *map, unsigned *key, unsigned long long *value, struct step *step)
{
	total += *key * 1000 + *value;
	(*value)++;
	return left-- == 1;
}

static long drops_even(void *map, unsigned *key, unsigned long long *value, struct step *step)
{
	unsigned copy = *key;

	total++;
	if (copy % 2 == 0)
		bpf_map_delete_elem(&walked, &copy);
	return 0;
}

static long fills(unsigned long index, struct step *step)
{
	unsigned key = index;

	bpf_map_update_elem(&walked, &key, &step->width, 0);
	bpf_map_update_elem(&walked_per_cpu, &key, &step->width, 0);
	return 0;
}

SEC("uprobe")
int walks(struct pt_regs *ctx)
{
	struct step step = { .width = 1 };

	total = left = 0;
	TELL("walk: an empty map", bpf_for_each_map_elem(&walked, visits, &step, 0));
	bpf_loop(20, fills, &step, 0);
	total = left = 0;
	TELL("walk: hash", bpf_for_each_map_elem(&walked, visits, &step, 0));
	TELL("walk: sum", total);
	left = 5;
	TELL("walk: ended", bpf_for_each_map_elem(&walked, visits, &step, 0));
	TELL("walk: deleting", bpf_for_each_map_elem(&walked, drops_even, &step, 0));
	total = 0;
	TELL("walk: what is left", bpf_for_each_map_elem(&walked, drops_even, &step, 0));
	TELL("walk: sum", total);
	total = left = 0;
	TELL("walk: per CPU", bpf_for_each_map_elem(&walked_per_cpu, visits, &step, 0));
	TELL("walk: sum", total);
	TELL("walk: array", bpf_for_each_map_elem(&cells, visits, &step, 0));
	TELL("walk: flags", bpf_for_each_map_elem(&walked, visits, &step, 1));
	return 0;
}

// ---- a value that is deleted while a program has its address ----

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 2);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, unsigned);
	__type(value, unsigned long long);
} small SEC(".maps");

SEC("uprobe")
int stale(struct pt_regs *ctx)
{
	unsigned first = 1, second = 2, third = 3;
	unsigned long long value = 11, *kept, *other;

	bpf_map_update_elem(&small, &first, &value, 0);
	value = 22;
	bpf_map_update_elem(&small, &second, &value, 0);
	TELL("stale: full", bpf_map_update_elem(&small, &third, &value, 0));
	kept = bpf_map_lookup_elem(&small, &first);
	if (!kept)
		return 0;
	TELL("stale: deleted", bpf_map_delete_elem(&small, &first));
	TELL("stale: still readable", *kept);
	*kept = 33;
	TELL("stale: gone", !bpf_map_lookup_elem(&small, &first));
	other = bpf_map_lookup_elem(&small, &second);
	TELL("stale: the other", other ? *other : -1);
	value = 44;
	TELL("stale: room again", bpf_map_update_elem(&small, &third, &value, 0));
	other = bpf_map_lookup_elem(&small, &third);
	TELL("stale: the new one", other ? *other : -1);
	bpf_map_delete_elem(&small, &third);
	bpf_map_delete_elem(&small, &second);
	return 0;
}

// ---- values of the running thread ----

struct {
	__uint(type, BPF_MAP_TYPE_TASK_STORAGE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, int);
	__type(value, unsigned long long);
} mine SEC(".maps");

SEC("uprobe")
int storage(struct pt_regs *ctx)
{
	unsigned long long start = 5, *value;
	struct task_struct *task = bpf_get_current_task_btf();

	value = bpf_task_storage_get(&mine, task, 0, 0);
	TELL("storage: there", value ? (long long)*value : -1);
	value = bpf_task_storage_get(&mine, task, &start, 2);
	TELL("storage: flags", value ? (long long)*value : -1);
	value = bpf_task_storage_get(&mine, task, &start, BPF_LOCAL_STORAGE_GET_F_CREATE);
	TELL("storage: made", value ? (long long)*value : -1);
	if (value)
		*value += PT_REGS_PARM1(ctx);
	value = bpf_task_storage_get(&mine, task, 0, 0);
	TELL("storage: kept", value ? (long long)*value : -1);
	return 0;
}

SEC("uprobe")
int unstorage(struct pt_regs *ctx)
{
	struct task_struct *task = bpf_get_current_task_btf();
	unsigned long long *value;

	TELL("storage: deleted", bpf_task_storage_delete(&mine, task));
	TELL("storage: again", bpf_task_storage_delete(&mine, task));
	value = bpf_task_storage_get(&mine, task, 0, BPF_LOCAL_STORAGE_GET_F_CREATE);
	TELL("storage: zero", value ? (long long)*value : -1);
	return 0;
}

// ---- dynamic pointers ----

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} ring SEC(".maps");

char memory[32] = "memory of some length";
unsigned length = 21;

SEC("uprobe")
int dynptrs(struct pt_regs *ctx)
{
	struct bpf_dynptr of_memory, in_ring, none;
	char read[8] = {}, *data;
	unsigned bytes = length;

	if (bytes > sizeof(memory))
		return 0;
	TELL("dynptr: flags", bpf_dynptr_from_mem(memory, bytes, 1, &none));
	TELL("dynptr: read none", bpf_dynptr_read(read, 4, &none, 0, 0));
	TELL("dynptr: none has no size", (int)bpf_dynptr_size(&none));
	TELL("dynptr: none", bpf_dynptr_is_null(&none) & 0xff);
	TELL("dynptr: none may not be written", bpf_dynptr_is_rdonly(&none) & 0xff);
	TELL("dynptr: of memory", bpf_dynptr_from_mem(memory, bytes, 0, &of_memory));
	TELL("dynptr: size", bpf_dynptr_size(&of_memory));
	TELL("dynptr: one", bpf_dynptr_is_null(&of_memory) & 0xff);
	TELL("dynptr: may not be written", bpf_dynptr_is_rdonly(&of_memory) & 0xff);
	TELL_BYTES("dynptr: read", bpf_dynptr_read(read, 8, &of_memory, 3, 0), read, 8);
	TELL("dynptr: read the end", bpf_dynptr_read(read, 8, &of_memory, 13, 0));
	TELL("dynptr: read over the end", bpf_dynptr_read(read, 8, &of_memory, 14, 0));
	TELL("dynptr: read far away", bpf_dynptr_read(read, 8, &of_memory, 0xfffffffe, 0));
	TELL("dynptr: read flags", bpf_dynptr_read(read, 8, &of_memory, 0, 1));
	TELL("dynptr: write", bpf_dynptr_write(&of_memory, 10, "!!", 2, 0));
	TELL("dynptr: write over the end", bpf_dynptr_write(&of_memory, 20, "!!", 2, 0));
	TELL("dynptr: write flags", bpf_dynptr_write(&of_memory, 0, "!!", 2, 1));
	data = bpf_dynptr_data(&of_memory, 9, 4);
	if (data)
		TELL_BYTES("dynptr: data", 0, data, 4);
	TELL("dynptr: data over the end", !!bpf_dynptr_data(&of_memory, 18, 4));
	TELL("dynptr: reserve too much", bpf_ringbuf_reserve_dynptr(&ring, 5000, 0, &in_ring));
	bpf_ringbuf_discard_dynptr(&in_ring, 0);
	TELL("dynptr: reserve", bpf_ringbuf_reserve_dynptr(&ring, bytes, 0, &in_ring));
	TELL("dynptr: write there", bpf_dynptr_write(&in_ring, 1, memory, 8, 0));
	TELL_BYTES("dynptr: read there", bpf_dynptr_read(read, 8, &in_ring, 1, 0), read, 8);
	bpf_ringbuf_submit_dynptr(&in_ring, 0);
	TELL("dynptr: in the ring", bpf_ringbuf_query(&ring, BPF_RB_AVAIL_DATA));
	return 0;
}

// ---- samples from the loader ----

struct {
	__uint(type, BPF_MAP_TYPE_USER_RINGBUF);
	__uint(max_entries, 4096);
} samples SEC(".maps");

static long takes(struct bpf_dynptr *sample, struct step *step)
{
	unsigned long long number = 0, more = 0;
	// Before anything that the compiler could keep the pointer on the stack for: the verifier loses it there.
	long read = bpf_dynptr_read(&number, sizeof(number), sample, 0, 0);
	long behind = bpf_dynptr_read(&more, sizeof(more), sample, 9, 0);

	TELL("drain: number", read ? read : (long)number);
	TELL("drain: behind the end", behind);
	return number == step->width;
}

SEC("uprobe")
int drains(struct pt_regs *ctx)
{
	struct step step = { .width = 3 };

	TELL("drain: flags", bpf_user_ringbuf_drain(&samples, takes, &step, 4));
	TELL("drain: to the third", bpf_user_ringbuf_drain(&samples, takes, &step, 0));
	TELL("drain: the rest", bpf_user_ringbuf_drain(&samples, takes, &step, BPF_RB_NO_WAKEUP));
	TELL("drain: nothing", bpf_user_ringbuf_drain(&samples, takes, &step, BPF_RB_FORCE_WAKEUP));
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
