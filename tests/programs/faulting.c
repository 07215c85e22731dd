// SPDX-License-Identifier: MIT OR Apache-2.0
// Programs that touch maps which the traced process may have taken away: an ordinary libbpf tool.
//
//   faulting BINARY FUNCTION
//
// Attaches all of them, in all processes. Prints "attached", and for each line of input how often each program has begun, how often
// each has ended, the records that were read, and the sum of the words that programs have read.
#include <bpf/libbpf.h>
#include <stdio.h>
#include "faulting.skel.h"

static unsigned long records;

static int count(void *context, void *data, size_t bytes)
{
	(void)context, (void)data, (void)bytes;
	records++;
	return 0;
}

int main(int argc, char **argv)
{
	LIBBPF_OPTS(bpf_uprobe_opts, entry, .func_name = argc > 2 ? argv[2] : "");
	LIBBPF_OPTS(bpf_uprobe_opts, end, .func_name = argc > 2 ? argv[2] : "", .retprobe = true);
	struct faulting_bpf *tool = faulting_bpf__open_and_load();
	struct ring_buffer *ring;
	char line[16];

	setvbuf(stdout, NULL, _IOLBF, 0);
	if (!tool || argc < 3)
		return 1;
	ring = ring_buffer__new(bpf_map__fd(tool->maps.records), count, NULL, NULL);
	if (!ring || !bpf_program__attach_uprobe_opts(tool->progs.record, -1, argv[1], 0, &entry) ||
	    !bpf_program__attach_uprobe_opts(tool->progs.lock, -1, argv[1], 0, &entry) ||
	    !bpf_program__attach_uprobe_opts(tool->progs.helper, -1, argv[1], 0, &end) ||
	    !bpf_program__attach(tool->progs.callback))
		return 1;
	puts("attached");
	while (fgets(line, sizeof(line), stdin)) {
		ring_buffer__consume(ring);
		for (int at = 0; at < 4; at++)
			printf("%llu ", tool->bss->began[at]);
		for (int at = 0; at < 4; at++)
			printf("%llu ", tool->bss->ended[at]);
		printf("%lu %llu\n", records, tool->bss->sum);
	}
	return 0;
}
