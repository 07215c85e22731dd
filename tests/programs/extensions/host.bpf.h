// What all extensions of the tests have.
#include <linux/bpf.h>
#include <linux/ptrace.h>
#include <bpf/bpf_helpers.h>
#include "../../victims/extended.h"

// The arguments of the entry's function, 8 bytes each.
struct arguments {
	struct request *r;
	int flags;
	int unused;
	const char *why;
};

#define R (ctx->r)
// (`long`: a negative `int` has other upper bits than the number.)
#define EXTENSION SEC("uprobe") long extension(struct arguments *ctx)

extern int ring3_dynptr_from_slice(const void *slice, __u64 flags, struct bpf_dynptr *to) __ksym;
extern __u64 bpf_dynptr_size(const struct bpf_dynptr *of) __ksym;
extern _Bool bpf_dynptr_is_rdonly(const struct bpf_dynptr *of) __ksym;

// A loop's condition that ends it when it has run too often (`may_goto`).
#define BOUNDED                                                                                                        \
	({                                                                                                             \
		__label__ out, on;                                                                                     \
		int more = 1;                                                                                          \
		asm volatile goto("1: .byte 0xe5, 0; .long ((%l[out] - 1b - 8) / 8) & 0xffff; .short 0" : : : : out);      \
		goto on;                                                                                               \
	out:                                                                                                           \
		more = 0;                                                                                              \
	on:                                                                                                            \
		more;                                                                                                  \
	})

#define MAP(NAME, KIND, COUNT, VALUE)                                                                                  \
	struct {                                                                                                       \
		__uint(type, KIND);                                                                                    \
		__uint(max_entries, COUNT);                                                                            \
		__type(key, __u32);                                                                                    \
		__type(value, VALUE);                                                                                  \
	} NAME SEC(".maps")

char _license[] SEC("license") = "Dual MIT/GPL";

// Those that a program uses (the test says which).
#ifdef USES_words
MAP(words, BPF_MAP_TYPE_ARRAY, 1, __u64);
#endif
#ifdef USES_more
MAP(more, BPF_MAP_TYPE_ARRAY, 1, __u64);
#endif
#ifdef USES_ring
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} ring SEC(".maps");
#endif
#ifdef USES_programs
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} programs SEC(".maps");
#endif
