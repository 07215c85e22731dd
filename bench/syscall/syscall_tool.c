// SPDX-License-Identifier: MIT OR Apache-2.0
// Programs at system calls: an ordinary libbpf tool, for ring3 and for the kernel.
//
//   syscall_tool raw|trace|openat enter|exit|both empty|hash|percpu NUMBER PID
//
// PID: the process whose calls count (0: all). Prints "attached". On the line "stats" it makes the kernel count runs of
// programs from now on and prints "stats". On any other line (and at the end of input) it prints "BEGUN ENDED RUNS",
// detaches and ends: the calls of NUMBER that the maps have counted, and the kernel's number of runs.
#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "syscall_tool.skel.h"

// As in syscall_tool.bpf.c.
#define NUMBERS 512

static int quiet(enum libbpf_print_level level, const char *format, va_list args)
{
	return level == LIBBPF_DEBUG ? 0 : vfprintf(stderr, format, args);
}

static int fail(const char *what)
{
	fprintf(stderr, "syscall_tool: %s: %s\n", what, strerror(errno));
	return 1;
}

// Whether the program `name` is one of `point`, `side` and `kind`.
static bool is_asked_for(const char *name, const char *point, const char *side, const char *kind)
{
	char wanted[64];

	for (int is_exit = 0; is_exit < 2; is_exit++) {
		const char *own = is_exit ? "exit" : "enter";

		snprintf(wanted, sizeof(wanted), "%s_%s_%s", point, own, kind);
		if ((!strcmp(side, own) || !strcmp(side, "both")) && !strcmp(wanted, name))
			return true;
	}
	return false;
}

static unsigned long long counted(const struct syscall_tool_bpf *tool, unsigned key)
{
	unsigned long long count = 0, *cells = calloc(libbpf_num_possible_cpus(), sizeof(*cells));

	bpf_map_lookup_elem(bpf_map__fd(tool->maps.counts), &key, &count);
	if (cells && !bpf_map_lookup_elem(bpf_map__fd(tool->maps.cells), &key, cells))
		for (int cpu = 0; cpu < libbpf_num_possible_cpus(); cpu++)
			count += cells[cpu];
	free(cells);
	return count;
}

int main(int argc, char **argv)
{
	struct syscall_tool_bpf *tool;
	struct bpf_program *program;
	unsigned long long runs = 0;
	unsigned found = 0, number;
	char line[16];

	if (argc != 6) {
		fprintf(stderr, "usage: syscall_tool raw|trace|openat enter|exit|both empty|hash|percpu NUMBER PID\n");
		return 2;
	}
	number = atoi(argv[4]);
	setvbuf(stdout, NULL, _IOLBF, 0);
	libbpf_set_print(quiet);
	tool = syscall_tool_bpf__open();
	if (!tool)
		return fail("open");
	tool->rodata->wanted = atoi(argv[5]);
	bpf_object__for_each_program(program, tool->obj) {
		bool asked = is_asked_for(bpf_program__name(program), argv[1], argv[2], argv[3]);

		bpf_program__set_autoload(program, asked);
		found += asked;
	}
	if (!found)
		return fail("there is no such program");
	if (syscall_tool_bpf__load(tool))
		return fail("load");
	if (syscall_tool_bpf__attach(tool))
		return fail("attach");
	puts("attached");
	while (fgets(line, sizeof(line), stdin) && strcmp(line, "stats\n") == 0) {
		if (bpf_enable_stats(BPF_STATS_RUN_TIME) < 0) // on until we end
			return fail("statistics");
		puts("stats");
	}
	bpf_object__for_each_program(program, tool->obj) {
		struct bpf_prog_info info = {};
		unsigned bytes = sizeof(info);

		if (bpf_program__autoload(program) && !bpf_obj_get_info_by_fd(bpf_program__fd(program), &info, &bytes))
			runs += info.run_cnt;
	}
	printf("%llu %llu %llu\n", counted(tool, number), counted(tool, NUMBERS + number), runs);
	return 0;
}
