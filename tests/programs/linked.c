// Runs what `ring3 aot --emit obj` makes of linked.bpf.c: what it calls, and the words that it loads, are here.
#include <stdio.h>

typedef unsigned long u64;

// Programs, as ARCHITECTURE.md has them.
u64 linked(const void *context, void *env);
u64 goes_on(const void *context, void *env);

static u64 weights[4], runs;
static int others;

void *ring3_data_weights = weights, *ring3_data__bss = &runs, *ring3_map_others = &others;

u64 ring3_helper_ktime_get_ns(void)
{
	return 1000;
}

u64 ring3_helper_tail_call(const void *context, const void *map, u64 index)
{
	printf("tail call: %s %lu\n", map == &others ? "others" : "something else", index);
	return 0;
}

u64 ring3_tail_run(const void *context, void *env)
{
	return 0;
}

int main(void)
{
	static u64 env[1024];

	printf("%lu\n", linked("\6\1", env));
	printf("%lu\n", linked("\2\2", env));
	printf("%lu\n", goes_on("", env));
	printf("weights %lu %lu, runs %lu\n", weights[1], weights[2], runs);
	return 0;
}
