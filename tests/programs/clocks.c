// SPDX-License-Identifier: MIT OR Apache-2.0
// What programs read from clocks: an ordinary libbpf tool.
//
//   clocks BINARY FUNCTION
//
// Attaches to the function, in all processes, and to `write`. Prints "attached", and for each line of input
// "RUNS MONOTONIC BOOTTIME TAI JIFFIES": how often the function's program has run, and the times of its last run, ns, and ticks.
#include <bpf/libbpf.h>
#include <stdio.h>
#include "clocks.skel.h"

int main(int argc, char **argv)
{
	LIBBPF_OPTS(bpf_uprobe_opts, options, .func_name = argc > 2 ? argv[2] : "");
	struct clocks_bpf *tool = argc > 2 ? clocks_bpf__open_and_load() : NULL;
	char line[16];

	setvbuf(stdout, NULL, _IOLBF, 0);
	if (!tool || !bpf_program__attach_uprobe_opts(tool->progs.look, -1, argv[1], 0, &options) ||
	    !bpf_program__attach(tool->progs.look_at_call))
		return 1;
	puts("attached");
	while (fgets(line, sizeof(line), stdin))
		printf("%llu %llu %llu %llu %llu\n", tool->bss->runs, tool->bss->times[0], tool->bss->times[1],
		       tool->bss->times[2], tool->bss->jiffies);
	return 0;
}
