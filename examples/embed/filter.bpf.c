// The extension of these examples: it refuses some requests of a server that does not exist, and counts all of them.
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include "request.h"

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 256);
	__type(key, __u32);
	__type(value, __u64);
} requests_by_port SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} refused SEC(".maps");

__u64 seen;

// A function of the server: whether a user is known to it.
extern int is_known(const char *user, __u64 bytes) __ksym;

static void count(__u32 port)
{
	__u64 one = 1, *requests = bpf_map_lookup_elem(&requests_by_port, &port);

	if (requests)
		__sync_fetch_and_add(requests, 1);
	else
		bpf_map_update_elem(&requests_by_port, &port, &one, BPF_NOEXIST);
}

SEC("request")
int filter(struct request *request)
{
	seen++;
	count(request->port);
	if (bpf_strncmp(request->path, sizeof("/admin") - 1, "/admin") != 0)
		return VERDICT_PASS;
	if (is_known(request->user, sizeof(request->user)))
		return VERDICT_PASS;
	bpf_ringbuf_output(&refused, request, sizeof(*request), 0);
	request->refusals++;
	return VERDICT_REFUSE;
}

char LICENSE[] SEC("license") = "MIT";
