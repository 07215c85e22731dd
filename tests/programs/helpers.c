// SPDX-License-Identifier: MIT OR Apache-2.0
// Attaches the programs of helpers.bpf.c to a victim's functions of the same names.
//
//   helpers VICTIM
//
// Prints "attached"; on a line of input, what the programs told, one line each, and "end".
#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <errno.h>
#include <linux/perf_event.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "helpers.h"
#include "helpers.skel.h"

static int quiet(enum libbpf_print_level level, const char *format, va_list args)
{
	return level == LIBBPF_DEBUG ? 0 : vfprintf(stderr, format, args);
}

static void show_bytes(const unsigned char *bytes, unsigned count)
{
	for (unsigned i = 0; i < count; i++)
		printf(bytes[i] >= ' ' && bytes[i] <= '~' && bytes[i] != '\\' ? "%c" : "\\%02x", bytes[i]);
}

static int on_record(void *unused, void *data, size_t bytes)
{
	(void)unused;
	printf("ring record of %zu: ", bytes);
	// A record's end is what was in the ring before.
	show_bytes(data, bytes < 4 ? bytes : 4);
	printf("\n");
	return 0;
}

static unsigned long long last[4096];

static void on_sample(void *samples, int cpu, void *data, unsigned bytes)
{
	unsigned long long number = 0;

	++*(int *)samples;
	memcpy(&number, data, bytes < 8 ? bytes : 8);
	if (bytes >= 8 && number < last[cpu])
		printf("out of order on %d: %llu after %llu\n", cpu, number, last[cpu]);
	if (bytes >= 8)
		last[cpu] = number;
	printf("sample of %u: ", bytes);
	// Without the padding, in which is what was in the buffer before.
	show_bytes(data, bytes == 20 ? 13 : bytes - 4);
	printf("\n");
}

static void on_lost(void *unused, int cpu, unsigned long long count)
{
	(void)unused;
	printf("lost %llu on %d\n", count, cpu);
}

// Puts an event per CPU into an array, and gives them buffers only then, if at all.
static void add_late(int map, struct perf_event_mmap_page **pages, int cpus)
{
	struct perf_event_attr attr = {
		.type = PERF_TYPE_SOFTWARE,
		.size = sizeof(attr),
		.config = PERF_COUNT_SW_BPF_OUTPUT,
		.sample_type = PERF_SAMPLE_RAW,
		.sample_period = 1,
		.wakeup_events = 1,
	};

	for (int cpu = 0; cpu < cpus; cpu++) {
		int event = syscall(SYS_perf_event_open, &attr, -1, cpu, -1, PERF_FLAG_FD_CLOEXEC);

		if (event < 0 || bpf_map_update_elem(map, &cpu, &event, 0))
			printf("no late event: %s\n", strerror(errno));
		ioctl(event, PERF_EVENT_IOC_ENABLE, 0);
		if (!pages)
			continue;
		pages[cpu] = mmap(NULL, 2 * 4096, PROT_READ | PROT_WRITE, MAP_SHARED, event, 0);
		if (pages[cpu] == MAP_FAILED)
			printf("no late buffer: %s\n", strerror(errno));
	}
}

// The stacks in a map, from a function of the victim on.
static void show_stacks(int map, unsigned long long base)
{
	unsigned long long addresses[5];
	unsigned key = 0, *last = NULL;

	for (; bpf_map_get_next_key(map, last, &key) == 0; last = &key) {
		printf("stack %u: %d", key, bpf_map_lookup_elem(map, &key, addresses));
		for (unsigned i = 0; i < 5; i++)
			printf(" %lld", addresses[i] ? addresses[i] - base : 0);
		printf("\n");
	}
	printf("delete a stack: %d", bpf_map_delete_elem(map, &key));
	printf(", again %d", bpf_map_delete_elem(map, &key));
	printf(", put one %d\n", bpf_map_update_elem(map, &key, addresses, 0));
}

static struct helpers_bpf *loaded(bool writes)
{
	struct helpers_bpf *skel = helpers_bpf__open();

	if (!skel)
		return NULL;
	bpf_program__set_autoload(skel->progs.writes, writes);
	bpf_program__set_autoload(skel->progs.counts, access("/sys/kernel/btf/vmlinux", R_OK) == 0);
	if (!helpers_bpf__load(skel))
		return skel;
	helpers_bpf__destroy(skel);
	return NULL;
}

int main(int argc, char **argv)
{
	struct bpf_program *program;
	struct helpers_bpf *skel;
	struct ring_buffer *ring;
	struct perf_buffer *perf;
	char line[16];
	int samples = 0, cpus = libbpf_num_possible_cpus();
	struct perf_event_mmap_page *pages[cpus];
	unsigned long long late = 0;

	if (argc < 2)
		return 2;
	// A kernel that is locked down has no bpf_probe_write_user: then without it, loudly.
	libbpf_set_print(NULL);
	skel = loaded(true);
	libbpf_set_print(quiet);
	if (!skel)
		skel = loaded(false);
	if (!skel) {
		fprintf(stderr, "helpers: cannot load: %s\n", strerror(errno));
		return 1;
	}
	ring = ring_buffer__new(bpf_map__fd(skel->maps.ring), on_record, NULL, NULL);
	perf = perf_buffer__new(bpf_map__fd(skel->maps.events), 8, on_sample, on_lost, &samples, NULL);
	add_late(bpf_map__fd(skel->maps.late), pages, cpus);
	add_late(bpf_map__fd(skel->maps.mute), NULL, cpus);
	if (!ring || !perf) {
		fprintf(stderr, "helpers: no buffers: %s\n", strerror(errno));
		return 1;
	}
	bpf_object__for_each_program(program, skel->obj) {
		LIBBPF_OPTS(bpf_uprobe_opts, opts, .bpf_cookie = 0xfedcba9876543210ULL);
		char name[64];

		if (!bpf_program__autoload(program))
			continue;
		snprintf(name, sizeof(name), "%s", bpf_program__name(program));
		opts.retprobe = strcmp(bpf_program__section_name(program), "uretprobe") == 0;
		if (opts.retprobe)
			*strstr(name, "_after") = 0;
		opts.func_name = name;
		if (!bpf_program__attach_uprobe_opts(program, -1, argv[1], 0, &opts)) {
			fprintf(stderr, "helpers: %s: %s\n", name, strerror(errno));
			return 1;
		}
	}
	printf("attached\n");
	fflush(stdout);
	if (!fgets(line, sizeof(line), stdin))
		return 0;
	for (unsigned i = 0; i < skel->bss->count && i < RESULTS_MAX; i++) {
		struct result *result = &skel->bss->results[i];

		printf("%s: %lld", result->name, result->value);
		if (result->bytes)
			printf(" ");
		show_bytes(result->data, result->bytes);
		printf("\n");
	}
	show_stacks(bpf_map__fd(skel->maps.trace), skel->bss->stack_base);
	printf("records consumed: %d\n", ring_buffer__consume(ring));
	printf("samples consumed: %d\n", perf_buffer__consume(perf) < 0 ? -1 : samples);
	for (int cpu = 0; cpu < cpus; cpu++)
		late += pages[cpu]->data_head;
	printf("late bytes: %llu\n", late);
	printf("end\n");
	fflush(stdout);
	ring_buffer__free(ring);
	perf_buffer__free(perf);
	helpers_bpf__destroy(skel);
	return 0;
}
