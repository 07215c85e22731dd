// SPDX-License-Identifier: MIT OR Apache-2.0
// Reads events of a process as tools do: an ordinary libbpf tool, for ring3 and for the kernel.
//
//   events_tool PID BINARY perf|ring
//
// Prints "attached". For each line of input it prints "RECEIVED P50 P99 CPU", what has come since the line before: how many
// events, the median and the 99th percentile of how late they came, and its own CPU time, all in ns. At the end of input it detaches and ends.
#include <bpf/libbpf.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "events_tool.skel.h"

#define KEPT (1 << 20)
#define PERF_PAGES 64
// How long a question may wait for its answer.
#define POLL_MS 20

static unsigned lates[KEPT];
static unsigned long long received;
static atomic_int asked, ended;

static unsigned long long now(clockid_t clock)
{
	struct timespec time;

	clock_gettime(clock, &time);
	return time.tv_sec * 1000000000ull + time.tv_nsec;
}

static void take(const void *data)
{
	unsigned long long late = now(CLOCK_MONOTONIC) - *(const unsigned long long *)data;

	lates[received++ % KEPT] = late > ~0u ? ~0u : late;
}

static void on_sample(void *context, int cpu, void *data, unsigned bytes)
{
	take(data);
}

static int on_record(void *context, void *data, size_t bytes)
{
	take(data);
	return 0;
}

static int by_lateness(const void *one, const void *two)
{
	unsigned left = *(const unsigned *)one, right = *(const unsigned *)two;

	return (left > right) - (left < right);
}

static void report(void)
{
	static unsigned long long cpu_before;
	unsigned long long cpu = now(CLOCK_PROCESS_CPUTIME_ID);
	unsigned kept = received < KEPT ? received : KEPT;

	qsort(lates, kept, sizeof(*lates), by_lateness);
	printf("%llu %u %u %llu\n", received, kept ? lates[kept / 2] : 0, kept ? lates[kept * 99ull / 100] : 0,
	       cpu - cpu_before);
	received = 0;
	cpu_before = now(CLOCK_PROCESS_CPUTIME_ID);
}

static void *listen(void *unused)
{
	char line[16];

	while (fgets(line, sizeof(line), stdin))
		asked = 1;
	ended = 1;
	return NULL;
}

static int fail(const char *what)
{
	fprintf(stderr, "events_tool: %s: %s\n", what, strerror(errno));
	return 1;
}

int main(int argc, char **argv)
{
	LIBBPF_OPTS(bpf_uprobe_opts, options, .func_name = "victim_event");
	struct ring_buffer *records = NULL;
	struct perf_buffer *samples = NULL;
	struct events_tool_bpf *tool;
	pthread_t listener;
	int is_ring;

	if (argc != 4) {
		fprintf(stderr, "usage: events_tool PID BINARY perf|ring\n");
		return 2;
	}
	is_ring = !strcmp(argv[3], "ring");
	setvbuf(stdout, NULL, _IOLBF, 0);
	tool = events_tool_bpf__open_and_load();
	if (!tool)
		return fail("load");
	if (is_ring)
		records = ring_buffer__new(bpf_map__fd(tool->maps.records), on_record, NULL, NULL);
	else
		samples = perf_buffer__new(bpf_map__fd(tool->maps.samples), PERF_PAGES, on_sample, NULL, NULL, NULL);
	if (!records && !samples)
		return fail("buffer");
	if (!bpf_program__attach_uprobe_opts(is_ring ? tool->progs.ring : tool->progs.perf, atoi(argv[1]), argv[2], 0,
					     &options))
		return fail("attach");
	if (pthread_create(&listener, NULL, listen, NULL))
		return fail("thread");
	puts("attached");
	while (!ended) {
		if ((is_ring ? ring_buffer__poll(records, POLL_MS) : perf_buffer__poll(samples, POLL_MS)) < 0 && errno != EINTR)
			return fail("poll");
		if (!asked)
			continue;
		asked = 0;
		if (is_ring)
			ring_buffer__consume(records);
		else
			perf_buffer__consume(samples);
		report();
	}
	return 0;
}
