// Hits LTTng-UST's tracepoints, for `cargo xtask bench filter`, which tells it on standard input what to do:
//
//   enabled        1 if a session has enabled the tracepoint, else 0
//   asked COUNT    hits it so often, with an event that filters reject: `NS 0`
//   never COUNT    hits so often one that no session enables: `NS 0`
//   accepted COUNT hits it so often, with an event that filters accept: `NS 1`
#include <stdio.h>
#include <string.h>
#include <time.h>

#define LTTNG_UST_TRACEPOINT_CREATE_PROBES
#define LTTNG_UST_TRACEPOINT_DEFINE
#include "provider.h"

static unsigned long long now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

int main(void)
{
	struct event rejected, accepted;
	char line[64], order[16];
	unsigned long long begin;
	long count;

	make_event(&rejected, 0);
	make_event(&accepted, 1);
	puts("ready");
	fflush(stdout);
	while (fgets(line, sizeof line, stdin)) {
		count = 0;
		if (sscanf(line, "%15s %ld", order, &count) < 1)
			continue;
		begin = now();
		if (!strcmp(order, "enabled")) {
			printf("%d\n", lttng_ust_tracepoint_enabled(ring3_filter, asked) ? 1 : 0);
		} else if (!strcmp(order, "asked")) {
			for (long i = 0; i < count; i++)
				lttng_ust_tracepoint(ring3_filter, asked, &rejected);
			printf("%llu 0\n", now() - begin);
		} else if (!strcmp(order, "never")) {
			for (long i = 0; i < count; i++)
				lttng_ust_tracepoint(ring3_filter, never, &rejected);
			printf("%llu 0\n", now() - begin);
		} else if (!strcmp(order, "accepted")) {
			for (long i = 0; i < count; i++)
				lttng_ust_tracepoint(ring3_filter, asked, &accepted);
			printf("%llu 1\n", now() - begin);
		} else {
			printf("error: no such order\n");
		}
		fflush(stdout);
	}
	return 0;
}
