/* SPDX-License-Identifier: MIT OR Apache-2.0
 * Tracepoints of LTTng-UST with fields of every kind. */
#undef LTTNG_UST_TRACEPOINT_PROVIDER
#define LTTNG_UST_TRACEPOINT_PROVIDER shop

#undef LTTNG_UST_TRACEPOINT_INCLUDE
#define LTTNG_UST_TRACEPOINT_INCLUDE "shop.h"

#if !defined(SHOP_H) || defined(LTTNG_UST_TRACEPOINT_HEADER_MULTI_READ)
#define SHOP_H

#include <lttng/tracepoint.h>
#include <stdint.h>

LTTNG_UST_TRACEPOINT_ENUM(shop, state,
	LTTNG_UST_TP_ENUM_VALUES(
		lttng_ust_field_enum_value("NEW", 0)
		lttng_ust_field_enum_value("SHIPPED", 1)
	)
)

LTTNG_UST_TRACEPOINT_EVENT(shop, order,
	LTTNG_UST_TP_ARGS(int, id, uint64_t, cents, const char *, name, double, weight, const uint16_t *, rows, size_t, count),
	LTTNG_UST_TP_FIELDS(
		lttng_ust_field_integer(int, id, id)
		lttng_ust_field_integer_hex(uint64_t, cents, cents)
		lttng_ust_field_string(name, name)
		lttng_ust_field_float(double, weight, weight)
		lttng_ust_field_float(float, half, (float)weight / 2)
		lttng_ust_field_array(uint16_t, first, rows, 2)
		lttng_ust_field_sequence(uint16_t, rows, rows, size_t, count)
		lttng_ust_field_enum(shop, state, uint8_t, state, id & 1)
	)
)

LTTNG_UST_TRACEPOINT_EVENT(shop, closed,
	LTTNG_UST_TP_ARGS(void),
	LTTNG_UST_TP_FIELDS()
)

#endif

#include <lttng/tracepoint-event.h>
