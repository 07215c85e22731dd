// SPDX-License-Identifier: MIT OR Apache-2.0
// Refuses requests whose path, arguments or user agent have a forbidden pattern, and clients that ask too often.
//
// Rules are in maps, and can be changed while nginx runs (README.md):
//   patterns  the first four bytes of a pattern, in lower case -> the pattern
//   starts    at the index of a byte: 1 if a pattern starts with it
//   settings  at 0: requests that a client may make in a second; 0: as many as it likes
// and what was done: `seen`, at 0 requests, at 1 refused by a pattern, at 2 refused as too many.
#include <linux/bpf.h>
#include "nginx.h"
#include <bpf/bpf_helpers.h>

extern __u64 bpf_dynptr_size(const struct bpf_dynptr *ptr) __ksym;

#define TEXT_MAX 512
#define PATTERN_MAX 32
#define WINDOW 4
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
#define SECOND_NS 1000000000ull
#define FORBIDDEN 403
#define TOO_MANY_REQUESTS 429

// A pattern of at most 32 bytes: those of the mask's bits have to be equal.
struct pattern {
	__u64 text[PATTERN_MAX / 8];
	__u64 mask[PATTERN_MAX / 8];
};

struct client {
	char address[48];
};

struct bucket {
	__u64 since;
	__u64 count;
};

// A text, and a place in it: in memory, because the verifier follows a loop once if it knows nothing of its counters.
struct text {
	char bytes[TEXT_MAX + PATTERN_MAX];
	__u64 at;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 1024);
	__type(key, __u32);
	__type(value, struct pattern);
} patterns SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 256);
	__type(key, __u32);
	__type(value, __u8);
} starts SEC(".maps");

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
	__uint(max_entries, 3);
	__type(key, __u32);
	__type(value, __u64);
} seen SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 2);
	__type(key, __u32);
	__type(value, struct text);
} scratch SEC(".maps");

static void count(__u32 what)
{
	__u64 *counter = bpf_map_lookup_elem(&seen, &what);

	if (counter)
		__sync_fetch_and_add(counter, 1);
}

static int digit(char letter)
{
	if (letter >= '0' && letter <= '9')
		return letter - '0';
	letter |= 0x20;
	if (letter >= 'a' && letter <= 'f')
		return letter - 'a' + 10;
	return -1;
}

// Whether a pattern is at a place of the text.
static int matches(const struct text *text, __u32 at)
{
	const char *here = &text->bytes[at & (TEXT_MAX - 1)];
	__u32 key, index = (__u8)*here;
	const __u64 *words;
	__u64 differs = 0;
	__u8 *start = bpf_map_lookup_elem(&starts, &index);
	const struct pattern *pattern;

	if (!start || !*start)
		return 0;
	key = *(const __u32 *)here;
	pattern = bpf_map_lookup_elem(&patterns, &key);
	if (!pattern)
		return 0;
	words = (const __u64 *)here;
	for (int i = 0; i < PATTERN_MAX / 8; i++)
		differs |= (words[i] & pattern->mask[i]) ^ pattern->text[i];
	return !differs;
}

// Whether a text of the request has a pattern: escapes (%41) decoded, `+` as a space, in lower case. What is longer than TEXT_MAX is
// looked at up to there.
static int is_forbidden(const void *slice)
{
	struct bpf_dynptr from;
	__u32 raw_at = 0, text_at = 1;
	__u64 bytes, length;
	struct text *raw = bpf_map_lookup_elem(&scratch, &raw_at);
	struct text *text = bpf_map_lookup_elem(&scratch, &text_at);

	if (!raw || !text || ring3_dynptr_from_slice(slice, 0, &from))
		return 0;
	bytes = bpf_dynptr_size(&from);
	if (bytes > TEXT_MAX)
		bytes = TEXT_MAX;
	if (bytes < WINDOW || bpf_dynptr_read(raw->bytes, bytes, &from, 0, 0))
		return 0;
	raw->at = text->at = 0;
	while (BOUNDED) {
		__u64 i = raw->at;
		char letter;

		if (i >= bytes || i >= TEXT_MAX)
			break;
		raw->at = i + 1;
		letter = raw->bytes[i];
		if (letter == '%') {
			int high = digit(raw->bytes[i + 1]), low = digit(raw->bytes[i + 2]);

			if (high >= 0 && low >= 0) {
				letter = high << 4 | low;
				raw->at = i + 3;
			}
		} else if (letter == '+') {
			letter = ' ';
		}
		if (letter >= 'A' && letter <= 'Z')
			letter |= 0x20;
		text->bytes[text->at & (TEXT_MAX - 1)] = letter;
		text->at++;
	}
	length = text->at;
	__builtin_memset(&text->bytes[length & (TEXT_MAX - 1)], 0, PATTERN_MAX);
	text->at = 0;
	while (BOUNDED) {
		__u64 at = text->at;

		if (at >= length || at >= TEXT_MAX)
			return 0;
		text->at = at + 1;
		if (matches(text, at))
			return 1;
	}
	return 0;
}

// Whether a client may make one more request in this second.
static int is_too_fast(const void *address)
{
	struct client client = {};
	struct bpf_dynptr from;
	__u32 zero = 0;
	__u64 bytes, now = bpf_ktime_get_ns(), *limit = bpf_map_lookup_elem(&settings, &zero);
	struct bucket *bucket, fresh = { .since = now, .count = 1 };

	if (!limit || !*limit || ring3_dynptr_from_slice(address, 0, &from))
		return 0;
	bytes = bpf_dynptr_size(&from);
	if (!bytes || bytes > sizeof(client.address) || bpf_dynptr_read(client.address, bytes, &from, 0, 0))
		return 0;
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

SEC("uprobe")
int firewall(struct ring3_request *ctx)
{
	ngx_http_request_t *r = ctx->r;
	ngx_connection_t *connection;
	ngx_table_elt_t *agent;

	if (r->internal)
		return 0;
	count(0);
	connection = r->connection;
	if (connection && is_too_fast(&connection->addr_text.data))
		return answer(r, TOO_MANY_REQUESTS, 2);
	if (is_forbidden(&r->uri.data) || is_forbidden(&r->args.data))
		return answer(r, FORBIDDEN, 1);
	agent = r->headers_in.user_agent;
	if (agent && is_forbidden(&agent->value.data))
		return answer(r, FORBIDDEN, 1);
	return 0;
}

char _license[] SEC("license") = "Dual MIT/GPL";
