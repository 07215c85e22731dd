// SPDX-License-Identifier: MIT OR Apache-2.0
// Attaches marks.bpf.c to statically defined probes: `marks PID FILE NAME...`, with the pid -1 for all processes. One that cannot
// be attached is told, and the others are. A line of input shows what was seen; "detach N" takes one probe out.
#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "marks.h"
#include "marks.skel.h"

int main(int argc, char **argv)
{
	struct marks_bpf *marks = marks_bpf__open_and_load();
	struct bpf_link *links[MARKS_MAX] = { 0 };
	char line[64];
	int which;

	setvbuf(stdout, NULL, _IOLBF, 0);
	if (!marks || argc < 4 || argc > 3 + MARKS_MAX)
		return 1;
	for (int i = 3; i < argc; i++) {
		LIBBPF_OPTS(bpf_usdt_opts, options, .usdt_cookie = i - 3);

		links[i - 3] = bpf_program__attach_usdt(marks->progs.on_mark, atoi(argv[1]), argv[2], "ring3", argv[i],
							&options);
		if (!links[i - 3])
			printf("%s: %s\n", argv[i], strerror(errno));
	}
	puts("attached");
	while (fgets(line, sizeof(line), stdin)) {
		if (sscanf(line, "detach %d", &which) == 1) {
			bpf_link__destroy(links[which]);
			links[which] = NULL;
			puts("detached");
			continue;
		}
		for (which = 0; which < argc - 3; which++) {
			struct mark mark = { 0 };

			bpf_map_lookup_elem(bpf_map__fd(marks->maps.marks), &which, &mark);
			printf("%s %llu:", argv[which + 3], mark.hits);
			for (unsigned long long i = 0; i < mark.count && i < ARGUMENTS_MAX; i++)
				printf(" %lld", mark.arguments[i]);
			puts("");
		}
	}
	for (which = 0; which < MARKS_MAX; which++)
		bpf_link__destroy(links[which]);
	marks_bpf__destroy(marks);
	return 0;
}
