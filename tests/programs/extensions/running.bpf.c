// Extensions that keep to their class, and what they do at run time. As in `refusals.bpf.c`:
//   // CASE name class

// CASE verdicts plain
EXTENSION { volatile long kept = ctx->flags; long f = kept; return f == 1 ? 1 : f >= 400 && f < 600 ? f : 0; }

// CASE results result
EXTENSION { __u64 result = *(__u64 *)ctx; return result == 1005 ? 555 : 0; }

// CASE ints int
EXTENSION { int f = ctx->flags; return f == -3 ? -3 : f == 1 ? 1 : 0; }

// CASE bytes byte
EXTENSION { return (__u8)ctx->flags == 9 ? 200 : 0; }

// CASE skips bool
EXTENSION { return 1; }

// CASE answers answers
extern int answer(struct request *r, int status) __ksym;
extern long load __ksym;
EXTENSION { load = load + 1; answer(R, 404); return 404; }

// CASE numbers calls
extern long twice(long number) __ksym;
extern unsigned char a_byte(long number) __ksym;
extern signed char a_signed_byte(long number) __ksym;
extern struct request *find(unsigned int id) __ksym;
EXTENSION
{
	struct request *found = find(1);

	if (twice(21) != 42 || (long)a_byte(200) != 200 || (long)a_signed_byte(-3) != -3 || find(2))
		return 400;
	return found && found->method == 7 ? 500 : 401;
}

// CASE scribbles floats
extern void scribble(struct request *r) __ksym;
EXTENSION { scribble(R); return 0; }

// CASE reenters reenters
extern void again(struct request *r) __ksym;
EXTENSION { again(R); return ctx->flags == 1 ? 500 : 0; }

// CASE positive calls
extern int positive(struct request *r) __ksym;
EXTENSION { int n = positive(R); R->status = n + 300; return n > 0 ? 500 : 400; }

// CASE positive_in_a_subprogram calls
extern int positive(struct request *r) __ksym;
static __noinline int asks(struct request *r) { return positive(r); }
EXTENSION { int n = asks(R); R->status = n + 300; return 500; }

// CASE positive_in_a_callback calls
extern int positive(struct request *r) __ksym;
static long asks(__u64 i, void *given) { struct request **r = given; positive(*r); return 0; }
EXTENSION { struct request *r = R; bpf_loop(3, asks, &r, 0); R->status = 301; return 500; }

// CASE positive_inverted inverted
extern int positive(struct request *r) __ksym;
EXTENSION { positive(R); return 0; }

// CASE dangling unsafe
extern struct request *dangling(void) __ksym;
EXTENSION { struct request *r = dangling(); R->status = 300; int m = r->method; R->status = 301; return m ? 500 : 501; }

// CASE dangling_inverted inverted
extern struct request *dangling(void) __ksym;
EXTENSION { return dangling()->method == 5; }

// CASE writes_dangling unsafe
extern struct request *dangling(void) __ksym;
EXTENSION { dangling()->status = 500; return 500; }

// CASE leaps leaps
extern void leap(struct request *r) __ksym;
EXTENSION { __u32 k = 0; __u64 *v = bpf_map_lookup_elem(&words, &k); if (v) ++*v; leap(R); return 0; }

// CASE third_is_its_own plain
EXTENSION { __u32 k = 0; __u64 *v = bpf_map_lookup_elem(&words, &k); return v && ++*v == 3 ? 500 : 0; }

// CASE counts_within_calls calls
extern long twice(long value) __ksym;
EXTENSION
{
	__u32 k = 0;
	__u64 *v = bpf_map_lookup_elem(&words, &k);

	if (!v)
		return 0;
	++*v;
	twice(1);
	return ++*v == 6 ? 500 : 0;
}

// CASE dozes dozes
extern void doze(struct request *r) __ksym;
EXTENSION { doze(R); return 500; }

// CASE naps naps
extern void nap(struct request *r) __ksym;
EXTENSION { nap(R); return 500; }

// CASE forks forks
extern void forks(struct request *r) __ksym;
EXTENSION { forks(R); return 500; }

// CASE ends ends
extern void ends_thread(struct request *r) __ksym;
EXTENSION { ends_thread(R); return 500; }

// CASE reads_slices texts
EXTENSION
{
	struct bpf_dynptr uri, body;
	char room[6] = "", *at;
	long here = 500;

	if (ring3_dynptr_from_slice((void *)&R->uri.data, 0, &uri) || ring3_dynptr_from_slice((void *)&R->body.data, 0, &body))
		return 400;
	if (bpf_dynptr_read(room, 6, &uri, 0, 0) || room[1] != 'i')
		return 401;
	// What may only be read cannot be written, and what is behind the end is not there.
	if (bpf_dynptr_write(&uri, 0, room, 1, 0) != -22 || bpf_dynptr_data(&uri, 0, 4))
		return 402;
	if (bpf_dynptr_read(room, 6, &uri, 1, 0) != -7 || bpf_dynptr_read(room, 1, &uri, 0xffffffff, 0) != -7)
		return 403;
	if (bpf_dynptr_write(&body, 0, "BODY", 4, 0) || bpf_dynptr_write(&body, 7, "1234", 4, 0) != -7)
		return 404;
	at = bpf_dynptr_data(&body, 5, 2);
	if (!at || bpf_dynptr_data(&body, 5, 6))
		return 405;
	at[0] = '/';
	return here;
}

// CASE reads_empty texts
EXTENSION
{
	struct bpf_dynptr uri;

	if (ring3_dynptr_from_slice((void *)&R->uri.data, 0, &uri))
		return bpf_dynptr_size(&uri) == -22 ? 400 : 401;
	return bpf_dynptr_size(&uri) == 0 ? 500 : 402;
}

// CASE takes_long quick
static long each(__u64 i, void *given) { return 0; }
EXTENSION { bpf_loop(1 << 23, each, 0, 0); return 500; }

// CASE prints plain
EXTENSION
{
	static const char format[] = "%s%pI4";
	char text[32] = "";
	__u64 of[2] = { (__u64)ctx->why, (__u64)ctx->why };

	if (bpf_snprintf(text, sizeof(text), format, of, sizeof(of)) < 0)
		return 0;
	return text[0] == 'l' ? 500 : 501;
}

// CASE loops_for_ever plain
EXTENSION { __u32 k = 0; __u64 *v = bpf_map_lookup_elem(&words, &k); if (!v) return 0; while (BOUNDED) if (++*v == 0) break; return 500; }

// CASE loops_by_helper plain
static long each(__u64 i, void *given) { return 0; }
static long most(__u64 i, void *given) { bpf_loop(1 << 23, each, 0, 0); return 0; }
EXTENSION { bpf_loop(1 << 23, most, 0, 0); return 500; }

// CASE loops_by_helper_inverted inverted
static long each(__u64 i, void *given) { return 0; }
static long most(__u64 i, void *given) { bpf_loop(1 << 23, each, 0, 0); return 0; }
EXTENSION { bpf_loop(1 << 23, most, 0, 0); return 1; }

// CASE loops_with_a_record plain
static long each(__u64 i, void *given) { return 0; }
static long most(__u64 i, void *given) { bpf_loop(1 << 23, each, 0, 0); return 0; }
EXTENSION { void *e = bpf_ringbuf_reserve(&ring, 8, 0); if (!e) return 501; bpf_loop(1 << 23, most, 0, 0); bpf_ringbuf_discard(e, 0); return 500; }

// CASE loops_thrice plain
static long each(__u64 i, void *given) { ++*(long *)given; return 0; }
EXTENSION { long n = 0; bpf_loop(3, each, &n, 0); return n == 3 ? 500 : 501; }

// CASE ends_in_the_midst calls
// (A callback ends while the index is too great for the array: what follows must not run.)
extern int positive(struct request *r) __ksym;
struct given { struct request *r; __u64 at; };
static long asks(__u64 i, void *context) { struct given *g = context; g->at = 1000; positive(g->r); g->at = 1; return 0; }
EXTENSION
{
	struct given g = { R, 2 };
	struct request *r = R;

	bpf_loop(1, asks, &g, 0);
	r->status = g.at;
	return 500;
}

// CASE asks_all big_calls
extern long twice(long number) __ksym;
extern unsigned char a_byte(long number) __ksym;
extern struct request *find(unsigned int id) __ksym;
extern int limit __ksym;
EXTENSION
{
	struct bpf_dynptr uri, body;

	for (int i = 0; i < 3; i++) {
		if (twice(21) != 42)
			return 400;
		if (ring3_dynptr_from_slice((void *)&R->uri.data, 0, &uri) || bpf_dynptr_size(&uri) != 6)
			return 401;
		if (limit != 50)
			return 402;
		if (ring3_dynptr_from_slice((void *)&R->body.data, 0, &body) || bpf_dynptr_size(&body) != 10)
			return 403;
		if (a_byte(200) != 200 || !bpf_dynptr_is_rdonly(&uri) || bpf_dynptr_is_rdonly(&body))
			return 404;
		if (find(2))
			return 405;
	}
	return 0;
}

// CASE at_two_entries several
// (The host calls usleep in `nap`, and the extension by itself: both come to the other entry, where it is counted and left out.)
extern void nap(struct request *r) __ksym;
extern int usleep(unsigned int microseconds) __ksym;
SEC("uprobe/sleeps") long counts(unsigned long *ctx)
{
	__u32 key = 0;
	__u64 *count = bpf_map_lookup_elem(&words, &key);

	if (count)
		*count += ctx[0] == 2000 ? 1 : ctx[0] == 3 ? 10 : 100;
	return 1;
}
SEC("uprobe/serve") long extension(struct arguments *ctx)
{
	__u32 key = 0;
	__u64 *count = bpf_map_lookup_elem(&words, &key);

	nap(R);
	if (!count || usleep(3))
		return 500;
	return *count < 100 ? 400 + *count : 501;
}

// (What follows is refused, by the tool.)

// CASE other_section plain
SEC("xdp") int extension(struct xdp_md *context) { return 0; }

// CASE no_program plain
int kept = 1;

// CASE other_place plain
SEC("uprobe//bin/true:main") long extension(struct arguments *ctx) { return 0; }

// CASE reads_unions unions
EXTENSION
{
	struct tagged *tagged = &R->tagged;
	struct bpf_dynptr text;
	struct peer *peer;

	switch (tagged->kind) {
	case 1:
		tagged->value.number++;
		return (__u64)tagged->value.number < 100 ? 400 + tagged->value.number : 0;
	case 2:
		peer = tagged->value.peer;
		return peer && peer->port < 100 ? 400 + peer->port : 0;
	case 3:
	case 4:
		ring3_dynptr_from_slice((void *)&tagged->value.text.data, 0, &text);
		return 500 + (bpf_dynptr_size(&text) & 15);
	}
	return 0;
}
