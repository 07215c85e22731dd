// SPDX-License-Identifier: MIT OR Apache-2.0
// Attaches the program of secrets.bpf.c to a function of a binary, in all processes.
//
//   secrets BINARY
//
// Prints "attached"; on each line of input ("off": after it has told the program to keep nothing more; "clear": after it has
// deleted what there is) what the maps have, one line each, and "end".
#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "secrets.h"
#include "secrets.skel.h"

enum { KEYS_MAX = 4096, CPUS_MAX = 512 };

static void tell(const char *from, const struct record *record)
{
	char text[TEXT_BYTES + 1] = "";

	// (What a hostile target has written may be anything.)
	for (int i = 0; i < TEXT_BYTES && record->text[i]; i++)
		text[i] = isgraph((unsigned char)record->text[i]) ? record->text[i] : '?';
	printf("%s %u %u %s %u\n", from, record->pid, record->uid, text, record->calls);
}

static int on_ring(void *context, void *data, size_t bytes)
{
	(void)context;
	if (bytes == sizeof(struct record))
		tell("ring", data);
	return 0;
}

static void on_perf(void *context, int cpu, void *data, __u32 bytes)
{
	(void)context;
	(void)cpu;
	if (bytes >= sizeof(struct record))
		tell("perf", data);
}

static void on_lost(void *context, int cpu, __u64 lost)
{
	(void)context;
	(void)cpu;
	printf("lost %llu\n", (unsigned long long)lost);
}

static void tell_map(const char *from, int map, int stacks)
{
	static struct record values[CPUS_MAX];
	unsigned key, *before = NULL, seen = 0;
	unsigned long long addresses[DEPTH];

	while (!bpf_map_get_next_key(map, before, &key) && seen++ < KEYS_MAX) {
		if (!bpf_map_lookup_elem(map, &key, values)) {
			for (int cpu = 0; cpu < (strcmp(from, "cpu_hash") ? 1 : libbpf_num_possible_cpus()); cpu++)
				if (values[cpu].calls)
					tell(from, &values[cpu]);
			if (stacks >= 0 && values[0].stack >= 0 && !bpf_map_lookup_elem(stacks, &values[0].stack, addresses))
				printf("stack %u %llx\n", values[0].pid, addresses[0]);
		}
		before = &key;
	}
}

static void tell_counts(struct secrets_bpf *skel)
{
	unsigned long long values[CPUS_MAX] = {}, count = 0, zero = 0;

	bpf_map_lookup_elem(bpf_map__fd(skel->maps.counts), &(unsigned){ 0 }, &count);
	printf("count %llu\n", count);
	bpf_map_lookup_elem(bpf_map__fd(skel->maps.cpu_counts), &(unsigned){ 0 }, values);
	for (int cpu = 0; cpu < libbpf_num_possible_cpus(); cpu++)
		zero += values[cpu];
	printf("cpu_count %llu\n", zero);
	printf("total %llu\n", skel->bss->total);
}

static void delete_all(int map)
{
	unsigned key;

	while (!bpf_map_get_next_key(map, NULL, &key))
		if (bpf_map_delete_elem(map, &key))
			break;
}

int main(int argc, char **argv)
{
	LIBBPF_OPTS(bpf_uprobe_opts, opts, .func_name = "work");
	struct ring_buffer *ring;
	struct perf_buffer *perf;
	struct secrets_bpf *skel;
	unsigned zero = 0, one = 1;
	char line[16];

	if (argc < 2)
		return 2;
	skel = secrets_bpf__open_and_load();
	if (!skel || bpf_map_update_elem(bpf_map__fd(skel->maps.enabled), &zero, &one, 0)) {
		fprintf(stderr, "secrets: cannot load: %s\n", strerror(errno));
		return 1;
	}
	ring = ring_buffer__new(bpf_map__fd(skel->maps.ring), on_ring, NULL, NULL);
	perf = perf_buffer__new(bpf_map__fd(skel->maps.perf), 16, on_perf, on_lost, NULL, NULL);
	if (!ring || !perf || !bpf_program__attach_uprobe_opts(skel->progs.keep, -1, argv[1], 0, &opts)) {
		fprintf(stderr, "secrets: cannot attach: %s\n", strerror(errno));
		return 1;
	}
	printf("attached\n");
	fflush(stdout);
	while (fgets(line, sizeof(line), stdin)) {
		if (!strcmp(line, "off\n"))
			bpf_map_update_elem(bpf_map__fd(skel->maps.enabled), &zero, &zero, 0);
		if (!strcmp(line, "clear\n")) {
			delete_all(bpf_map__fd(skel->maps.by_pid));
			delete_all(bpf_map__fd(skel->maps.counts));
		}
		tell_map("hash", bpf_map__fd(skel->maps.by_pid), bpf_map__fd(skel->maps.stacks));
		tell_map("lru", bpf_map__fd(skel->maps.recent), -1);
		tell_map("cpu_hash", bpf_map__fd(skel->maps.cpu_hash), -1);
		tell_map("array", bpf_map__fd(skel->maps.array), -1);
		tell_counts(skel);
		ring_buffer__consume(ring);
		perf_buffer__consume(perf);
		printf("end\n");
		fflush(stdout);
	}
	secrets_bpf__destroy(skel);
	return 0;
}
