// The event that filters are asked about: the same bytes for all engines. `xtask/src/bench_filter.rs` and
// `tests/benches/filters/raw_main.rs` know its layout.
#ifndef EVENT_H
#define EVENT_H

#include <stdint.h>

#define TEXT_BYTES 64

struct event {
	int64_t i0, i1, i2, i3, i4, i5, i6, i7, i8, i9;
	// 1 in the event that filters accept, else 0; s4 is "accept" there, else empty.
	int64_t last;
	char s0[TEXT_BYTES], s1[TEXT_BYTES], s2[TEXT_BYTES], s3[TEXT_BYTES], s4[TEXT_BYTES];
};

static inline void make_event(struct event *e, int64_t last)
{
	*e = (struct event){
		.i0 = 10, .i1 = 11, .i2 = 12, .i3 = 13, .i4 = 14, .i5 = 15, .i6 = 16, .i7 = 17, .i8 = 18, .i9 = 19,
		.last = last,
		.s0 = "/etc/passwd", .s1 = "/usr/lib/x86_64-linux-gnu/libc.so.6", .s2 = "nginx", .s3 = "GET /index.html",
	};
	if (last)
		__builtin_memcpy(e->s4, "accept", sizeof "accept");
}

#endif
