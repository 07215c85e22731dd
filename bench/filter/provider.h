// LTTng-UST's tracepoints: one that filters are asked about, and the same that is never enabled. (LTTng's own headers include this
// file, and have a `tracepoint.h` beside them.)
#undef LTTNG_UST_TRACEPOINT_PROVIDER
#define LTTNG_UST_TRACEPOINT_PROVIDER ring3_filter

#undef LTTNG_UST_TRACEPOINT_INCLUDE
#define LTTNG_UST_TRACEPOINT_INCLUDE "provider.h"

#if !defined(RING3_PROVIDER_H) || defined(LTTNG_UST_TRACEPOINT_HEADER_MULTI_READ)
#define RING3_PROVIDER_H

#include <lttng/tracepoint.h>

#include "event.h"

LTTNG_UST_TRACEPOINT_EVENT_CLASS(
	ring3_filter, fields,
	LTTNG_UST_TP_ARGS(const struct event *, e),
	LTTNG_UST_TP_FIELDS(
		lttng_ust_field_integer(int64_t, i0, e->i0)
		lttng_ust_field_integer(int64_t, i1, e->i1)
		lttng_ust_field_integer(int64_t, i2, e->i2)
		lttng_ust_field_integer(int64_t, i3, e->i3)
		lttng_ust_field_integer(int64_t, i4, e->i4)
		lttng_ust_field_integer(int64_t, i5, e->i5)
		lttng_ust_field_integer(int64_t, i6, e->i6)
		lttng_ust_field_integer(int64_t, i7, e->i7)
		lttng_ust_field_integer(int64_t, i8, e->i8)
		lttng_ust_field_integer(int64_t, i9, e->i9)
		lttng_ust_field_integer(int64_t, last, e->last)
		lttng_ust_field_string(s0, e->s0)
		lttng_ust_field_string(s1, e->s1)
		lttng_ust_field_string(s2, e->s2)
		lttng_ust_field_string(s3, e->s3)
		lttng_ust_field_string(s4, e->s4)
	)
)

LTTNG_UST_TRACEPOINT_EVENT_INSTANCE(ring3_filter, fields, ring3_filter, asked, LTTNG_UST_TP_ARGS(const struct event *, e))
LTTNG_UST_TRACEPOINT_EVENT_INSTANCE(ring3_filter, fields, ring3_filter, never, LTTNG_UST_TP_ARGS(const struct event *, e))

#endif

#include <lttng/tracepoint-event.h>
