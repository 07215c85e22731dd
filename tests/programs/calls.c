// SPDX-License-Identifier: MIT OR Apache-2.0
// Counts system calls by the programs of calls.bpf.c.
//
//   calls [-c NAME] [-m] [-s] [raw] [trace] [named] [typed] [function]
//
// -c: of processes once they have this name, and of their children; else of all. -m: between two marks (calls.h). -s: tells each call with its arguments or its result, in order. raw: raw tracepoints sys_enter and sys_exit; trace:
// tracepoints raw_syscalls:*; named: some of syscalls:*; typed: sys_enter and sys_exit
// with types (tp_btf); function: the beginning and the end of some of the kernel's functions (fentry, fexit). Prints "attached"; on each line of input what was counted so far,
// sorted, then "end".
#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "calls.h"
#include "calls.skel.h"

#define KEYS_MAX 4096

static const char *const kinds[KINDS] = { "raw enter", "raw exit", "trace enter", "trace exit", "named enter", "named exit",
	"typed enter", "typed exit", "function enter", "function exit" };

static int compare(const void *left, const void *right)
{
	const struct key *a = left, *b = right;

	if (a->kind != b->kind)
		return a->kind < b->kind ? -1 : 1;
	return a->number < b->number ? -1 : a->number > b->number;
}

static int on_record(void *unused, void *data, size_t bytes)
{
	const struct record *record = data;
	const unsigned long long *v = record->values;

	(void)unused;
	(void)bytes;
	printf("%s %d", kinds[record->key.kind], record->key.number);
	if (record->key.kind & 1)
		printf(" = %lld\n", v[0]);
	else
		printf(" (%llx, %llx, %llx, %llx, %llx, %llx)\n", v[0], v[1], v[2], v[3], v[4], v[5]);
	return 0;
}

static void report(const struct calls_bpf *calls)
{
	static struct key keys[KEYS_MAX];
	struct key *last = NULL;
	unsigned count = 0;
	struct bpf_program *program;

	while (count < KEYS_MAX && !bpf_map_get_next_key(bpf_map__fd(calls->maps.counts), last, &keys[count]))
		last = &keys[count++];
	qsort(keys, count, sizeof(*keys), compare);
	for (unsigned i = 0; i < count; i++) {
		unsigned long long value = 0;

		bpf_map_lookup_elem(bpf_map__fd(calls->maps.counts), &keys[i], &value);
		printf("%s %d %llu\n", kinds[keys[i].kind], keys[i].number, value);
	}
	// What nobody saw may not pass for what did not happen.
	bpf_object__for_each_program(program, calls->obj) {
		struct bpf_prog_info info = { 0 };
		unsigned bytes = sizeof(info);

		if (bpf_program__autoload(program) && !bpf_obj_get_info_by_fd(bpf_program__fd(program), &info, &bytes) &&
		    info.recursion_misses)
			printf("%s missed %llu\n", bpf_program__name(program), (unsigned long long)info.recursion_misses);
	}
	if (calls->bss->lost)
		printf("records lost %llu\n", (unsigned long long)calls->bss->lost);
	puts("end");
}

static int usage(void)
{
	fprintf(stderr, "usage: calls [-c NAME] [-m] [-s] [raw] [trace] [named] [typed] [function]\n");
	return 2;
}

int main(int argc, char **argv)
{
	struct calls_bpf *calls = calls_bpf__open();
	struct bpf_program *program;
	struct ring_buffer *ring;
	char line[16];

	setvbuf(stdout, NULL, _IOLBF, 0);
	if (!calls)
		return 1;
	for (int option; (option = getopt(argc, argv, "c:ms")) != -1;) {
		if (option == 'c') {
			calls->rodata->by_name = true;
			strncpy((char *)calls->rodata->name, optarg, sizeof(calls->rodata->name) - 1);
		} else if (option == 'm') {
			calls->rodata->by_mark = true;
		} else if (option == 's') {
			calls->rodata->in_order = true;
		} else {
			return usage();
		}
	}
	if (optind == argc)
		return usage();
	bpf_object__for_each_program(program, calls->obj) {
		const char *name = bpf_program__name(program);
		bool wanted = calls->rodata->by_mark && !strcmp(name, "mark");

		for (int i = optind; i < argc; i++)
			wanted |= !strncmp(name, argv[i], strlen(argv[i])) && name[strlen(argv[i])] == '_';
		bpf_program__set_autoload(program, wanted);
	}
	if (calls_bpf__load(calls))
		return 1;
	if (calls->rodata->by_mark) {
		calls->links.mark = bpf_program__attach(calls->progs.mark);
		if (!calls->links.mark)
			return 1;
	}
	if (calls_bpf__attach(calls))
		return 1;
	ring = ring_buffer__new(bpf_map__fd(calls->maps.records), on_record, NULL, NULL);
	if (!ring)
		return 1;
	puts("attached");
	while (read(0, line, sizeof(line)) > 0) {
		ring_buffer__consume(ring);
		report(calls);
	}
	return 0;
}
