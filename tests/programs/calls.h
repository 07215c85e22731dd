// SPDX-License-Identifier: MIT OR Apache-2.0
// What the programs of calls.bpf.c, their loader and the victims in ../victims/calls know.

// A number that no kernel has: a victim calls it with 1 where counting shall begin and with 2 where it shall end.
#define MARK 0x5231
#define MARK_BEGIN 1
#define MARK_END 2
// Another one, among those that have an entry of their own in ring3's table: of its beginning a raw tracepoint's program tells
// the registers that functions keep.
#define KEPT 400

enum kind { RAW_ENTER, RAW_EXIT, TRACE_ENTER, TRACE_EXIT, NAMED_ENTER, NAMED_EXIT, TYPED_ENTER, TYPED_EXIT, FUNCTION_ENTER, FUNCTION_EXIT, KINDS };

struct key {
	int number;
	unsigned kind;
};

// One call's entry (six arguments) or exit (its result).
struct record {
	struct key key;
	unsigned long long values[6];
};
