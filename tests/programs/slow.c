// SPDX-License-Identifier: MIT OR Apache-2.0
// Programs that take their time, and one that does not: an ordinary libbpf tool.
//
//   slow BINARY FUNCTION [return]
//
// Attaches all of them, in all processes: to the function's entry, or to its return. Prints "attached", and for each line of input
// "SLOW QUICK CALLS": how often each has run.
#include <bpf/libbpf.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>
#include "slow.skel.h"

// Tools that want no messages of libbpf's silence themselves while they load.
static struct slow_bpf *load_in_silence(void)
{
	int before = dup(STDERR_FILENO), nothing = open("/dev/null", O_WRONLY | O_CLOEXEC);
	struct slow_bpf *tool;

	dup2(nothing, STDERR_FILENO);
	tool = slow_bpf__open_and_load();
	dup2(before, STDERR_FILENO);
	close(before);
	close(nothing);
	return tool;
}

int main(int argc, char **argv)
{
	LIBBPF_OPTS(bpf_uprobe_opts, options, .func_name = argc > 2 ? argv[2] : "", .retprobe = argc > 3);
	struct slow_bpf *tool = load_in_silence();
	char line[16];

	setvbuf(stdout, NULL, _IOLBF, 0);
	if (!tool || argc < 3)
		return 1;
	if (!bpf_program__attach_uprobe_opts(tool->progs.slow, -1, argv[1], 0, &options) ||
	    !bpf_program__attach_uprobe_opts(tool->progs.quick, -1, argv[1], 0, &options) ||
	    !bpf_program__attach(tool->progs.slow_call))
		return 1;
	puts("attached");
	while (fgets(line, sizeof(line), stdin))
		printf("%llu %llu %llu\n", tool->bss->runs[0], tool->bss->runs[1], tool->bss->runs[2]);
	return 0;
}
