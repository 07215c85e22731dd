// SPDX-License-Identifier: MIT OR Apache-2.0
// Attaches the programs of reads.bpf.c to functions of a binary, in all processes.
//
//   reads BINARY [only]
//
// "only": nothing is written. Prints "attached"; on each line of input how many words, blocks, strings and writes succeeded and
// failed, the sum of the words, and how many names were right and wrong.
#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "reads.skel.h"

static int attach(struct bpf_program *program, const char *binary, const char *function)
{
	LIBBPF_OPTS(bpf_uprobe_opts, opts, .func_name = function);

	return bpf_program__attach_uprobe_opts(program, -1, binary, 0, &opts) ? 0 : -1;
}

int main(int argc, char **argv)
{
	struct reads_bpf *skel = argc > 1 ? reads_bpf__open() : NULL;
	int writes = argc < 3;
	char line[16];

	if (!skel)
		return 2;
	bpf_program__set_autoload(skel->progs.scribble, writes);
	if (reads_bpf__load(skel) || attach(skel->progs.look, argv[1], "look")
	    || attach(skel->progs.tell, argv[1], "tell")
	    || (writes && attach(skel->progs.scribble, argv[1], "scribble"))) {
		fprintf(stderr, "reads: cannot attach: %s\n", strerror(errno));
		return 1;
	}
	printf("attached\n");
	fflush(stdout);
	while (fgets(line, sizeof(line), stdin)) {
		struct reads_bpf__bss *bss = skel->bss;

		printf("%llu %llu %llu %llu %llu %llu %llu %llu %llu %llu %llu\n", bss->words[0], bss->words[1], bss->blocks[0],
		       bss->blocks[1], bss->strings[0], bss->strings[1], bss->writes[0], bss->writes[1], bss->sum,
		       bss->names[0], bss->names[1]);
		fflush(stdout);
	}
	reads_bpf__destroy(skel);
	return 0;
}
