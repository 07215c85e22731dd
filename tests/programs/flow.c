// SPDX-License-Identifier: MIT OR Apache-2.0
// Attaches the programs of flow.bpf.c to a victim's functions of the same names.
//
//   flow VICTIM
//
// Prints "attached"; on a line of input with the pid of the victim, what the programs told, one line each, and "end". Before the next line it
// changes what is in the arrays.
#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "helpers.h"
#include "flow.skel.h"

static const char *const attached[] = { "tails", "repeated", "asked", "inner", "named", "looped", "walks", "stale", "dynptrs",
					"storage", "unstorage", "drains" };

static void show(const char *what, int result)
{
	printf("%s: %s\n", what, result ? strerror(errno) : "done");
}

static int new_cells(unsigned long long value)
{
	int fd = bpf_map_create(BPF_MAP_TYPE_ARRAY, "cells", 4, 8, 2, NULL);
	unsigned one = 1;

	bpf_map_update_elem(fd, &one, &value, 0);
	return fd;
}

static void name_cells(struct flow_bpf *skel)
{
	int outer = bpf_map__fd(skel->maps.by_name), wrong = bpf_map__fd(skel->maps.first);

	for (unsigned long long name = 0; name < 3; name += 2) {
		int fd = new_cells(1000 * name);

		show("name", bpf_map_update_elem(outer, &name, &fd, BPF_NOEXIST));
		show("name again", bpf_map_update_elem(outer, &name, &fd, BPF_NOEXIST));
		// The outer map keeps it.
		close(fd);
	}
	show("name of another kind", bpf_map_update_elem(outer, &(unsigned long long){ 1 }, &wrong, 0));
}

static void change(struct flow_bpf *skel)
{
	int jumps = bpf_map__fd(skel->maps.jumps), index = bpf_map__fd(skel->maps.by_index);
	int outer = bpf_map__fd(skel->maps.by_name), ends = bpf_program__fd(skel->progs.ends), cells = new_cells(7);
	int first = bpf_map__fd(skel->maps.first);

	show("jump to the end", bpf_map_update_elem(jumps, &(int){ 0 }, &ends, 0));
	show("jump nowhere", bpf_map_delete_elem(jumps, &(int){ 3 }));
	show("jump nowhere again", bpf_map_delete_elem(jumps, &(int){ 3 }));
	show("index", bpf_map_update_elem(index, &(int){ 2 }, &first, 0));
	show("no index", bpf_map_delete_elem(index, &(int){ 1 }));
	show("rename", bpf_map_update_elem(outer, &(unsigned long long){ 2 }, &cells, BPF_EXIST));
	show("no name", bpf_map_delete_elem(outer, &(unsigned long long){ 0 }));
	close(cells);
}

// What threads of the victim keep, by their pidfds. Between rounds the victim's main thread has a value.
static void change_storage(struct flow_bpf *skel, int pid)
{
	int mine = bpf_map__fd(skel->maps.mine), thread = syscall(SYS_pidfd_open, pid, 0), none = -1;
	unsigned long long value = 0;

	show("storage lookup", bpf_map_lookup_elem(mine, &thread, &value));
	printf("storage value: %llu\n", value);
	value = 1000;
	show("storage add", bpf_map_update_elem(mine, &thread, &value, BPF_NOEXIST));
	show("storage change", bpf_map_update_elem(mine, &thread, &value, BPF_EXIST));
	show("storage of nobody", bpf_map_lookup_elem(mine, &none, &value));
	show("storage of a map", bpf_map_lookup_elem(mine, &mine, &value));
	show("storage next", bpf_map_get_next_key(mine, NULL, &none));
	close(thread);
}

// Samples 1 to 5, of which the second is discarded; then as many as there is room for.
static void write_samples(struct user_ring_buffer *ring)
{
	unsigned many = 0;

	for (unsigned long long number = 1; number <= 5; number++) {
		unsigned long long *sample = user_ring_buffer__reserve(ring, 16);

		*sample = number;
		if (number == 2)
			user_ring_buffer__discard(ring, sample);
		else
			user_ring_buffer__submit(ring, sample);
	}
	for (void *sample; (sample = user_ring_buffer__reserve(ring, 1000)); many++)
		user_ring_buffer__discard(ring, sample);
	printf("room for: %u\n", many);
	printf("room at once: %d\n", !!user_ring_buffer__reserve_blocking(ring, 1000, 10));
}

static int attach(struct flow_bpf *skel, const char *victim)
{
	for (unsigned i = 0; i < sizeof(attached) / sizeof(*attached); i++) {
		LIBBPF_OPTS(bpf_uprobe_opts, opts, .func_name = attached[i]);
		struct bpf_program *program = bpf_object__find_program_by_name(skel->obj, attached[i]);

		if (!bpf_program__attach_uprobe_opts(program, -1, victim, 0, &opts))
			return -1;
	}
	return 0;
}

int main(int argc, char **argv)
{
	struct flow_bpf *skel = argc < 2 ? NULL : flow_bpf__open_and_load();
	struct user_ring_buffer *ring;
	char line[32];
	unsigned told = 0;

	if (!skel || attach(skel, argv[1])) {
		fprintf(stderr, "flow: %s\n", strerror(errno));
		return 1;
	}
	name_cells(skel);
	ring = user_ring_buffer__new(bpf_map__fd(skel->maps.samples), NULL);
	if (!ring) {
		fprintf(stderr, "flow: no ring: %s\n", strerror(errno));
		return 1;
	}
	write_samples(ring);
	printf("attached\n");
	fflush(stdout);
	while (fgets(line, sizeof(line), stdin)) {
		for (; told < skel->bss->count && told < RESULTS_MAX; told++)
			printf("%s: %lld %.*s\n", skel->bss->results[told].name, skel->bss->results[told].value,
			       (int)skel->bss->results[told].bytes, skel->bss->results[told].data);
		change(skel);
		change_storage(skel, atoi(line));
		write_samples(ring);
		printf("end\n");
		fflush(stdout);
	}
	user_ring_buffer__free(ring);
	flow_bpf__destroy(skel);
	return 0;
}
