// SPDX-License-Identifier: MIT OR Apache-2.0
// A loader that puts a map into a map of maps, ROUNDS times, and takes it out again. Says "done"; an update that fails ends it.
#define _GNU_SOURCE
#include <bpf/bpf.h>
#include <errno.h>
#include <unistd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv)
{
	int rounds = argc == 2 ? atoi(argv[1]) : 1;
	__u32 key = 0;

	for (int i = 0; i < rounds; i++) {
		int inner = bpf_map_create(BPF_MAP_TYPE_ARRAY, "inner", 4, 8, 1, NULL);
		LIBBPF_OPTS(bpf_map_create_opts, options, .inner_map_fd = inner);
		int outer = bpf_map_create(BPF_MAP_TYPE_ARRAY_OF_MAPS, "outer", 4, 4, 1, &options);

		if (outer < 0 || bpf_map_update_elem(outer, &key, &inner, BPF_ANY)) {
			printf("round %d: %s\n", i, strerrorname_np(errno));
			return 1;
		}
		close(outer);
		close(inner);
	}
	puts("done");
	return 0;
}
