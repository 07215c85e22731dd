// SPDX-License-Identifier: MIT OR Apache-2.0
// Refuses requests whose path, arguments or user agent have a forbidden pattern, and clients that ask too often.
//
// Rules are in maps, and can be changed while nginx runs: `rules` does that (README.md).
//   patterns  a window (match.h) -> its pattern
//   triples   which three bytes windows have
//   settings  at 0: requests that a client may make in a second; 0: as many as it likes
// and what was done: `seen`, at 0 requests, at 1 refused by a pattern, at 2 refused as too many, at 3 refused as too long.
#include <linux/bpf.h>
#include "nginx.h"
#include <bpf/bpf_helpers.h>

extern __u64 bpf_dynptr_size(const struct bpf_dynptr *ptr) __ksym;

// A jump out of a loop that is taken when the loop has run too often (`may_goto`, kernel 6.9): so the verifier need not follow
// each round.
#define BOUNDED                                                                                                   \
	({                                                                                                        \
		__label__ out, on;                                                                                \
		int more = 1;                                                                                     \
		asm volatile goto("1: .byte 0xe5, 0; .long ((%l[out] - 1b - 8) / 8) & 0xffff; .short 0" : : : : out); \
		goto on;                                                                                          \
	out:                                                                                                      \
		more = 0;                                                                                         \
	on:                                                                                                       \
		more;                                                                                             \
	})
// nginx lowers it each time that it changes a request's path (NGX_HTTP_MAX_URI_CHANGES + 1 at first).
#define URI_CHANGES_AT_FIRST 11
#define SECOND_NS 1000000000ull
#define FORBIDDEN 403
#define URI_TOO_LONG 414
#define TOO_MANY_REQUESTS 429

static const struct pattern *find_pattern(__u32 window);

#include "match.h"

struct client {
	char address[48];
};

struct bucket {
	__u64 since;
	__u64 count;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, __u32);
	__type(value, struct pattern);
} patterns SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct triples);
} triples SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} settings SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 16384);
	__type(key, struct client);
	__type(value, struct bucket);
} clients SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 4);
	__type(key, __u32);
	__type(value, __u64);
} seen SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct text[2]);
} scratch SEC(".maps");

static void count(__u32 what)
{
	__u64 *counter = bpf_map_lookup_elem(&seen, &what);

	if (counter)
		__sync_fetch_and_add(counter, 1);
}

static inline const struct pattern *find_pattern(__u32 window)
{
	return bpf_map_lookup_elem(&patterns, &window);
}

enum verdict { FINE, FORBIDDEN_TEXT, TOO_LONG };

static __noinline int judge(const void *slice)
{
	struct bpf_dynptr from;
	__u32 zero = 0;
	__u64 bytes;
	struct text *text, *texts = bpf_map_lookup_elem(&scratch, &zero);
	const struct triples *table = bpf_map_lookup_elem(&triples, &zero);

	if (!texts || !table || ring3_dynptr_from_slice(slice, 0, &from))
		return FINE;
	text = &texts[0];
	bytes = bpf_dynptr_size(&from);
	if (bytes > TEXT_MAX)
		return TOO_LONG;
	if (bytes < WINDOW || bpf_dynptr_read(text->bytes, bytes, &from, 0, 0))
		return FINE;
	__builtin_memset(&text->bytes[bytes], PADDING, PATTERN_MAX + 8);
	text->length = bytes;
	switch (search_all(text, &texts[1], table)) {
	case INNOCENT:
		return FINE;
	case FORBIDDEN_FOUND:
		return FORBIDDEN_TEXT;
	default:
		// (The class allows too few instructions for it: nobody knows what is in it.)
		return TOO_LONG;
	}
}

// Whether a client may make one more request in this second.
static int is_too_fast(const void *address)
{
	struct client client = {};
	struct bpf_dynptr from;
	__u32 zero = 0;
	__u64 bytes, now, *limit = bpf_map_lookup_elem(&settings, &zero);
	struct bucket *bucket, fresh = { .count = 1 };

	if (!limit || !*limit || ring3_dynptr_from_slice(address, 0, &from))
		return 0;
	bytes = bpf_dynptr_size(&from);
	if (!bytes || bytes > sizeof(client.address) || bpf_dynptr_read(client.address, bytes, &from, 0, 0))
		return 0;
	now = fresh.since = bpf_ktime_get_ns();
	bucket = bpf_map_lookup_elem(&clients, &client);
	if (!bucket || now - bucket->since >= SECOND_NS) {
		bpf_map_update_elem(&clients, &client, &fresh, BPF_ANY);
		return 0;
	}
	return __sync_fetch_and_add(&bucket->count, 1) >= *limit;
}

static int answer(ngx_http_request_t *r, int status, __u32 why)
{
	count(why);
	ngx_http_finalize_request(r, status);
	return 1;
}

// What the client wrote; and the path as nginx reads it, if that is not the same (`//`, `/./`, `/../`).
static int judge_line(ngx_http_request_t *r)
{
	__u64 plain_length = r->uri.len + r->args.len + (r->args.len != 0);
	int verdict = judge(&r->unparsed_uri.data);

	if (verdict == FINE && r->unparsed_uri.len != plain_length)
		verdict = judge(&r->uri.data);
	return verdict;
}

static int judge_agent(ngx_http_request_t *r)
{
	ngx_table_elt_t *agent = r->headers_in.user_agent;

	return agent ? judge(&agent->value.data) : FINE;
}

SEC("uprobe")
int firewall(struct ring3_request *ctx)
{
	ngx_http_request_t *r = ctx->r;
	ngx_connection_t *connection;
	int verdict;

	// Once for each request of a client, not for what nginx makes of it: sub-requests, redirects.
	if (r->main != r || r->uri_changes != URI_CHANGES_AT_FIRST)
		return 0;
	count(0);
	connection = r->connection;
	if (connection && is_too_fast(&connection->addr_text.data))
		return answer(r, TOO_MANY_REQUESTS, 2);
	verdict = judge_line(r);
	if (verdict == FINE)
		verdict = judge_agent(r);
	if (verdict == FORBIDDEN_TEXT)
		return answer(r, FORBIDDEN, 1);
	if (verdict == TOO_LONG)
		return answer(r, URI_TOO_LONG, 3);
	return 0;
}

char _license[] SEC("license") = "Dual MIT/GPL";
