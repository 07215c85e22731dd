// SPDX-License-Identifier: MIT OR Apache-2.0
// Compares the stacks of ../victims/stacked.cc with what that knows of them.
//
//   stacks BINARY [FUNCTION | RETURNS:ret ...]
//
// Takes stacks at `mark`, if that exists, and at `touch` in all processes, and at FUNCTIONs and where the functions RETURNS return. Prints "attached"; on a line of
// input, for each name of a stack how many were the same and how many were not, and the first of these.
#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "stacks.h"
#include "stacks.skel.h"

enum { NAMES = 32 };

static struct {
	char name[16];
	int same, different;
	struct told first;
} names[NAMES];

// Where the same return address is in both: the first frames are of functions that lead to `mark`, and to the unwinder.
static int meet(const struct told *told, unsigned long *from, unsigned long *skip)
{
	for (*from = 2; *from <= 3; ++*from)
		for (*skip = 1; *skip < 4; ++*skip)
			if (told->known.frames[*skip] && told->known.frames[*skip] == told->frames[*from])
				return 1;
	return 0;
}

static int is_same(const struct told *told, const struct told *of_id)
{
	unsigned long count = told->bytes / 8, known = told->known.count, from, skip;

	if (told->bytes <= 0 || !meet(told, &from, &skip) || count - from != known - skip)
		return 0;
	for (unsigned long at = 0; at < known - skip; at++) {
		unsigned long wanted = told->known.frames[skip + at];

		if (wanted && wanted != told->frames[from + at])
			return 0;
	}
	return !memcmp(of_id->frames, told->frames, told->bytes);
}

static int note(void *context, void *data, size_t bytes)
{
	struct stacks_bpf *skel = context;
	struct told *told = data, of_id = {};
	int at = 0;

	(void)bytes;
	while (names[at].name[0] && strcmp(names[at].name, told->known.name))
		at++;
	strcpy(names[at].name, told->known.name);
	// (Another stack may have the same hash.)
	if (told->id == -EEXIST)
		memcpy(of_id.frames, told->frames, sizeof(of_id.frames));
	else if (told->id < 0 || bpf_map_lookup_elem(bpf_map__fd(skel->maps.traces), &told->id, of_id.frames))
		told->bytes = -1;
	if (is_same(told, &of_id))
		names[at].same++;
	else if (!names[at].different++)
		names[at].first = *told;
	return 0;
}

static int attach(struct bpf_program *program, const char *binary, const char *function, int ret)
{
	LIBBPF_OPTS(bpf_uprobe_opts, opts, .func_name = function, .retprobe = ret);

	return bpf_program__attach_uprobe_opts(program, -1, binary, 0, &opts) ? 0 : -1;
}

static void show(const char *what, const unsigned long *frames, long count)
{
	printf("%s", what);
	for (long at = 0; at < count && at < FRAMES; at++)
		printf(" %lx", frames[at]);
}

int main(int argc, char **argv)
{
	struct stacks_bpf *skel;
	struct ring_buffer *ring;
	char line[16];

	libbpf_set_print(NULL);
	skel = argc > 1 ? stacks_bpf__open_and_load() : NULL;
	if (!skel || (attach(skel->progs.entered, argv[1], "mark", 0) && errno != ENOENT)
	    || attach(skel->progs.left, argv[1], "touch", 0)) {
		fprintf(stderr, "stacks: cannot attach: %s\n", strerror(errno));
		return 1;
	}
	for (int at = 2; at < argc; at++) {
		char *end = strstr(argv[at], ":ret");

		if (end)
			*end = 0;
		if (attach(skel->progs.left, argv[1], argv[at], !!end)) {
			fprintf(stderr, "stacks: cannot attach to %s: %s\n", argv[at], strerror(errno));
			return 1;
		}
	}
	ring = ring_buffer__new(bpf_map__fd(skel->maps.told), note, skel, NULL);
	printf("attached\n");
	fflush(stdout);
	while (fgets(line, sizeof(line), stdin)) {
		ring_buffer__consume(ring);
		for (int at = 0; at < NAMES && names[at].name[0]; at++) {
			printf("%s: %d same, %d not", names[at].name, names[at].same, names[at].different);
			if (names[at].different) {
				show("; stack", names[at].first.frames, names[at].first.bytes / 8);
				show("; known", names[at].first.known.frames, names[at].first.known.count);
			}
			printf("\n");
		}
		printf("%llu lost, %llu returned\n", skel->bss->lost, skel->bss->returned);
		fflush(stdout);
	}
	ring_buffer__free(ring);
	stacks_bpf__destroy(skel);
	return 0;
}
