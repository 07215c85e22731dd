// SPDX-License-Identifier: MIT OR Apache-2.0
// A program with tracepoints of LTTng-UST. For each line of input it reports three events shop:order and one shop:closed, and prints
// "reported". With -DPROBES it is a library of the probes only, and with -DUSER a program without them.
#ifndef USER
#define LTTNG_UST_TRACEPOINT_CREATE_PROBES
#endif
#ifdef USER
#define LTTNG_UST_TRACEPOINT_PROBE_DYNAMIC_LINKAGE
#endif
#ifndef PROBES
#define LTTNG_UST_TRACEPOINT_DEFINE
#endif
#include "shop.h"
#include <stdio.h>

#ifndef PROBES
int main(void)
{
	static const uint16_t rows[] = { 1, 2, 3 };
	char line[64];

	setvbuf(stdout, NULL, _IOLBF, 0);
	puts("ready");
	while (fgets(line, sizeof(line), stdin)) {
		for (int i = 0; i < 3; i++)
			lttng_ust_tracepoint(shop, order, i - 1, 100ul + i, "Ada", i / 2.0, rows, 3);
		lttng_ust_tracepoint(shop, closed);
		puts("reported");
	}
	return 0;
}
#endif
