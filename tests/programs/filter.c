// SPDX-License-Identifier: MIT OR Apache-2.0
// Loads filter.bpf.c; on a line of input it tells what its programs did.
#include <bpf/bpf.h>
#include <stdio.h>
#include "filter.h"
#include "filter.skel.h"

int main(void)
{
	struct filter_bpf *filter = filter_bpf__open_and_load();

	if (!filter || filter_bpf__attach(filter))
		return 1;
	puts("attached");
	fflush(stdout);
	if (getchar() == EOF)
		return 0;
	for (unsigned which = 0; which < COUNTS; which++) {
		unsigned long long count = 0;

		bpf_map_lookup_elem(bpf_map__fd(filter->maps.counts), &which, &count);
		printf("%llu%c", count, which + 1 < COUNTS ? ' ' : '\n');
	}
	filter_bpf__destroy(filter);
	return 0;
}
