// SPDX-License-Identifier: MIT OR Apache-2.0
// One link to many uprobes of a file: `multi PID FLAGS FILE OFFSET[:COUNTER]...`, numbers in hexadecimal, the pid 0 for all
// processes. (Made by bpf(2) itself: libbpf before 1.3 does not know such links.) A line of input shows what was seen.
#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "multi.h"
#include "multi.skel.h"

#define UPROBE_MULTI 48 // BPF_TRACE_UPROBE_MULTI

// What `union bpf_attr` has of BPF_LINK_CREATE (linux/bpf.h, v6.6).
struct link_create {
	unsigned program, target, attach_type, flags;
	unsigned long long path, offsets, counters, cookies;
	unsigned count, multi_flags, pid;
};

int main(int argc, char **argv)
{
	static unsigned long long offsets[1 << 15], counters[1 << 15], cookies[1 << 15];
	struct multi_bpf *multi = multi_bpf__open();
	int count = argc - 4, link;
	char line[64];

	setvbuf(stdout, NULL, _IOLBF, 0);
	if (!multi || count < 1 || count > 1 << 15)
		return 1;
	bpf_program__set_expected_attach_type(multi->progs.at_place, UPROBE_MULTI);
	if (multi_bpf__load(multi))
		return 1;
	for (int i = 0; i < count; i++) {
		char *end;

		offsets[i] = strtoull(argv[i + 4], &end, 16);
		counters[i] = *end == ':' ? strtoull(end + 1, NULL, 16) : 0;
		cookies[i] = i + 100;
	}
	struct link_create attr = {
		.program = bpf_program__fd(multi->progs.at_place),
		.attach_type = UPROBE_MULTI,
		.path = (unsigned long)argv[3],
		.offsets = (unsigned long)offsets,
		.counters = (unsigned long)counters,
		.cookies = (unsigned long)cookies,
		.count = count,
		.multi_flags = atoi(argv[2]),
		.pid = atoi(argv[1]),
	};
	link = syscall(SYS_bpf, BPF_LINK_CREATE, &attr, sizeof(attr));
	if (link < 0) {
		printf("refused: %d\n", errno);
		return 0;
	}
	puts("attached");
	while (fgets(line, sizeof(line), stdin)) {
		for (int i = 0; i < count && i < PLACES_MAX; i++) {
			struct place place = { 0 };

			bpf_map_lookup_elem(bpf_map__fd(multi->maps.places), &i, &place);
			printf("%llu %s\n", place.hits,
			       !place.hits			       ? "-" :
			       place.function % 4096 == offsets[i] % 4096 ? "there" :
									 "elsewhere");
		}
	}
	close(link);
	multi_bpf__destroy(multi);
	return 0;
}
