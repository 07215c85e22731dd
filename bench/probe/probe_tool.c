// SPDX-License-Identifier: MIT OR Apache-2.0
// One probe on one function of one process: an ordinary libbpf tool, for ring3 and for the kernel.
//
//   probe_tool PID BINARY SYMBOL uprobe|uretprobe empty|counting|per_cpu|stack|filtered
//
// Prints "attached". On the line "stats" it makes the kernel count runs of programs from now on and prints "stats".
// On any other line (and at the end of input) it prints "COUNT RUNS", detaches and ends: the maps' counts (for PID,
// and of all CPUs), and the kernel's number of runs.
#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "probe_tool.skel.h"

static int quiet(enum libbpf_print_level level, const char *format, va_list args)
{
	return level == LIBBPF_DEBUG ? 0 : vfprintf(stderr, format, args);
}

static int fail(const char *what)
{
	fprintf(stderr, "probe_tool: %s: %s\n", what, strerror(errno));
	return 1;
}

int main(int argc, char **argv)
{
	LIBBPF_OPTS(bpf_uprobe_opts, opts);
	struct bpf_prog_info info = {};
	unsigned info_size = sizeof(info), pid;
	unsigned long long count = 0;
	struct probe_tool_bpf *skel;
	struct bpf_program *program, *wanted;
	unsigned long long *cells;
	unsigned zero = 0;
	char line[16];

	if (argc != 6) {
		fprintf(stderr, "usage: probe_tool PID BINARY SYMBOL uprobe|uretprobe empty|counting|per_cpu|stack|filtered\n");
		return 2;
	}
	pid = atoi(argv[1]);
	opts.func_name = argv[3];
	opts.retprobe = strcmp(argv[4], "uretprobe") == 0;
	setvbuf(stdout, NULL, _IOLBF, 0);
	libbpf_set_print(quiet);
	skel = probe_tool_bpf__open();
	if (!skel)
		return fail("open");
	wanted = bpf_object__find_program_by_name(skel->obj, argv[5]);
	if (!wanted)
		return fail(argv[5]);
	bpf_object__for_each_program(program, skel->obj)
		bpf_program__set_autoload(program, program == wanted);
	if (probe_tool_bpf__load(skel))
		return fail("load");
	if (!bpf_program__attach_uprobe_opts(wanted, pid, argv[2], 0, &opts))
		return fail("attach");
	puts("attached");
	while (fgets(line, sizeof(line), stdin) && strcmp(line, "stats\n") == 0) {
		if (bpf_enable_stats(BPF_STATS_RUN_TIME) < 0) // on until we end
			return fail("statistics");
		puts("stats");
	}
	bpf_map_lookup_elem(bpf_map__fd(skel->maps.counts), &pid, &count);
	cells = calloc(libbpf_num_possible_cpus(), sizeof(*cells));
	if (!cells || bpf_map_lookup_elem(bpf_map__fd(skel->maps.cells), &zero, cells))
		return fail("cells");
	for (int cpu = 0; cpu < libbpf_num_possible_cpus(); cpu++)
		count += cells[cpu];
	if (bpf_obj_get_info_by_fd(bpf_program__fd(wanted), &info, &info_size))
		return fail("info");
	printf("%llu %llu\n", count, (unsigned long long)info.run_cnt);
	return 0;
}
