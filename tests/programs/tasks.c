// SPDX-License-Identifier: MIT OR Apache-2.0
// Attaches the programs of tasks.bpf.c, or of what NAME says, to a function of a binary, or to the tracepoints that they name.
//
//   tasks BINARY
//
// Prints "attached"; on each line of input, what the programs told since, one line each, and "end".
#include <bpf/libbpf.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "helpers.h"

#ifndef NAME
#define NAME tasks
#endif
#define TEXT_OF(name) #name
#define TEXT(name) TEXT_OF(name)
#define JOINED(name, end) name##_bpf##end
#define OF(name, end) JOINED(name, end)
#include TEXT(NAME.skel.h)

int main(int argc, char **argv)
{
	LIBBPF_OPTS(bpf_uprobe_opts, opts, .func_name = "tell");
	struct bpf_program *program;
	struct OF(NAME, ) *skel;
	char line[16];

	if (argc < 2)
		return 2;
	skel = OF(NAME, __open_and_load)();
	if (!skel) {
		fprintf(stderr, "tasks: cannot load: %s\n", strerror(errno));
		return 1;
	}
	bpf_object__for_each_program(program, skel->obj) {
		const char *section = bpf_program__section_name(program);
		bool is_uprobe = section[0] == 'u';

		opts.retprobe = strcmp(section, "uretprobe") == 0;
		if (!(is_uprobe ? bpf_program__attach_uprobe_opts(program, -1, argv[1], 0, &opts)
				: bpf_program__attach(program))) {
			fprintf(stderr, "tasks: %s: %s\n", bpf_program__name(program), strerror(errno));
			return 1;
		}
	}
	printf("attached\n");
	fflush(stdout);
	while (fgets(line, sizeof(line), stdin)) {
		for (unsigned i = 0; i < skel->bss->count && i < RESULTS_MAX; i++) {
			struct result *result = &skel->bss->results[i];

			printf("%s: %lld", result->name, result->value);
			if (result->bytes)
				printf(" ");
			for (unsigned byte = 0; byte < result->bytes; byte++)
				printf("%02x", result->data[byte]);
			printf("\n");
		}
		memset(skel->bss->results, 0, sizeof(skel->bss->results));
		skel->bss->count = 0;
		printf("end\n");
		fflush(stdout);
	}
	OF(NAME, __destroy)(skel);
	return 0;
}
