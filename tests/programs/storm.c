// SPDX-License-Identifier: MIT OR Apache-2.0
// Attaches the programs of storm.bpf.c to a victim's functions of the same names.
//
//   storm VICTIM
//
// Prints "attached". Reads records all the time. On a line of input prints "PID RECEIVED SUBMITTED" of each process that
// sent any, "sums PLAIN PER_CPU PER_CPU_HASH", and "end". A record that comes out of order is told and ends it.
#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include "storm.h"
#include "storm.skel.h"

#define THREADS_MAX 65536

static struct {
	unsigned tid, pid;
	unsigned long long last, received;
} threads[THREADS_MAX];
static unsigned thread_count;

static int on_record(void *unused, void *data, size_t bytes)
{
	struct event *event = data;
	unsigned i, tid = event->pid_tgid;

	(void)unused;
	(void)bytes;
	for (i = thread_count; i-- > 0;)
		if (threads[i].tid == tid)
			break;
	if (i == (unsigned)-1) {
		i = thread_count++;
		threads[i].tid = tid;
		threads[i].pid = event->pid_tgid >> 32;
	}
	// There may be several processes 1, one after the other: each namespace has one.
	if (event->number <= threads[i].last && threads[i].pid != 1) {
		printf("thread %u: %llu after %llu\n", tid, event->number, threads[i].last);
		exit(1);
	}
	threads[i].last = event->number;
	threads[i].received++;
	return thread_count == THREADS_MAX ? -1 : 0;
}

static unsigned long long sum(const struct bpf_map *map)
{
	unsigned long long values[1024] = { 0 }, all = 0;
	unsigned key = 0;

	bpf_map_lookup_elem(bpf_map__fd(map), &key, values);
	for (int cpu = 0; cpu < libbpf_num_possible_cpus(); cpu++)
		all += values[cpu];
	return all;
}

static void report(const struct storm_bpf *storm)
{
	unsigned key, *last = NULL;

	while (!bpf_map_get_next_key(bpf_map__fd(storm->maps.submitted), last, &key)) {
		unsigned long long received = 0, submitted = 0;

		bpf_map_lookup_elem(bpf_map__fd(storm->maps.submitted), &key, &submitted);
		for (unsigned i = 0; i < thread_count; i++)
			if (threads[i].pid == key)
				received += threads[i].received;
		printf("%u %llu %llu\n", key, received, submitted);
		last = &key;
	}
	printf("sums %llu %llu %llu\nend\n", sum(storm->maps.plain), sum(storm->maps.per_cpu),
	       sum(storm->maps.per_cpu_hash));
}

int main(int argc, char **argv)
{
	struct storm_bpf *storm = storm_bpf__open_and_load();
	LIBBPF_OPTS(bpf_uprobe_opts, options);
	struct ring_buffer *ring;
	char line[16];

	setvbuf(stdout, NULL, _IONBF, 0);
	if (!storm || argc != 2)
		return 1;
	options.func_name = "hold";
	storm->links.hold = bpf_program__attach_uprobe_opts(storm->progs.hold, -1, argv[1], 0, &options);
	options.func_name = "count";
	storm->links.count = bpf_program__attach_uprobe_opts(storm->progs.count, -1, argv[1], 0, &options);
	options.func_name = "tick";
	storm->links.tick = bpf_program__attach_uprobe_opts(storm->progs.tick, -1, argv[1], 0, &options);
	ring = ring_buffer__new(bpf_map__fd(storm->maps.ring), on_record, NULL, NULL);
	if (!storm->links.hold || !storm->links.count || !storm->links.tick || !ring)
		return 1;
	puts("attached");
	for (;;) {
		struct pollfd input = { .fd = 0, .events = POLLIN };

		if (ring_buffer__poll(ring, 20) < 0)
			return 1;
		if (poll(&input, 1, 0) > 0) {
			if (read(0, line, sizeof(line)) <= 0)
				return 0;
			ring_buffer__consume(ring);
			report(storm);
		}
	}
}
