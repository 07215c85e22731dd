/* SPDX-License-Identifier: MIT OR Apache-2.0
 * The event of the benchmark, as LTTng-UST describes one. */
#undef LTTNG_UST_TRACEPOINT_PROVIDER
#define LTTNG_UST_TRACEPOINT_PROVIDER bench

#undef LTTNG_UST_TRACEPOINT_INCLUDE
#define LTTNG_UST_TRACEPOINT_INCLUDE "lttng_probes.h"

#if !defined(LTTNG_PROBES_H) || defined(LTTNG_UST_TRACEPOINT_HEADER_MULTI_READ)
#define LTTNG_PROBES_H

#include <lttng/tracepoint.h>

LTTNG_UST_TRACEPOINT_EVENT(bench, event,
	LTTNG_UST_TP_ARGS(int, id, unsigned long, number, const char *, name),
	LTTNG_UST_TP_FIELDS(
		lttng_ust_field_integer(int, id, id)
		lttng_ust_field_integer(unsigned long, number, number)
		lttng_ust_field_string(name, name)
	)
)

#endif

#include <lttng/tracepoint-event.h>
