// SPDX-License-Identifier: MIT OR Apache-2.0
// Counts how often each process calls malloc, or other functions: an ordinary libbpf tool.
//
//   malloc [-p PID] [BINARY:SYMBOL[:ret]]...        (0xOFFSET instead of SYMBOL: a place in the file)
//
// Prints "attached", then on each line of input (and at the end of input) the counts so far, one line
// "PID PROBE COUNT" each, and an empty line.
#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>
#include "malloc.skel.h"

struct key {
	unsigned pid;
	unsigned probe;
};

static int quiet(enum libbpf_print_level level, const char *format, va_list args)
{
	return level == LIBBPF_DEBUG ? 0 : vfprintf(stderr, format, args);
}

static void report(int map, char **names)
{
	struct key key, next, *at = NULL;
	unsigned long long count;

	while (bpf_map_get_next_key(map, at, &next) == 0) {
		key = next;
		at = &key;
		if (bpf_map_lookup_elem(map, &key, &count) == 0)
			printf("%u %s %llu\n", key.pid, names[key.probe], count);
	}
	printf("\n");
	fflush(stdout);
}

static int attach(struct malloc_bpf *skel, char *name, unsigned cookie, int pid)
{
	LIBBPF_OPTS(bpf_uprobe_opts, opts, .bpf_cookie = cookie);
	char *spec = strdup(name), *symbol = strchr(spec, ':'), *kind;
	size_t offset = 0;
	int error = 0;

	if (!symbol) {
		fprintf(stderr, "malloc: %s: not of the form BINARY:SYMBOL\n", name);
		return -EINVAL;
	}
	*symbol++ = 0;
	kind = strchr(symbol, ':');
	if (kind)
		*kind++ = 0;
	opts.retprobe = kind && strcmp(kind, "ret") == 0;
	if (strncmp(symbol, "0x", 2) == 0)
		offset = strtoul(symbol, NULL, 16);
	else
		opts.func_name = symbol;
	if (!bpf_program__attach_uprobe_opts(opts.retprobe ? skel->progs.on_return : skel->progs.on_entry, pid, spec,
					     offset, &opts)) {
		error = -errno;
		fprintf(stderr, "malloc: %s: %s\n", name, strerror(errno));
	}
	free(spec);
	return error;
}

int main(int argc, char **argv)
{
	static char *defaults[] = { "/lib/x86_64-linux-gnu/libc.so.6:malloc", NULL };
	char **names = defaults, line[64];
	struct rlimit files;
	struct malloc_bpf *skel;
	int option, pid = -1, attached = 0;

	while ((option = getopt(argc, argv, "p:")) != -1) {
		if (option != 'p')
			return 2;
		pid = atoi(optarg);
	}
	if (optind < argc)
		names = argv + optind;
	libbpf_set_print(quiet);
	// Each probe takes two descriptors.
	if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
		files.rlim_cur = files.rlim_max;
		setrlimit(RLIMIT_NOFILE, &files);
	}
	skel = malloc_bpf__open_and_load();
	if (!skel) {
		fprintf(stderr, "malloc: cannot load: %s\n", strerror(errno));
		return 1;
	}
	for (int i = 0; names[i]; i++)
		attached += attach(skel, names[i], i, pid) == 0;
	if (!attached)
		return 1;
	printf("attached %d\n", attached);
	fflush(stdout);
	while (fgets(line, sizeof(line), stdin))
		report(bpf_map__fd(skel->maps.counts), names);
	report(bpf_map__fd(skel->maps.counts), names);
	malloc_bpf__destroy(skel);
	return 0;
}
