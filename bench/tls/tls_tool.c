// SPDX-License-Identifier: MIT OR Apache-2.0
// Reads what a process sends and receives by TLS: an ordinary libbpf tool, as sslsniff is one, for ring3 and for the kernel.
//
//   tls_tool PID LIBRARY      (PID -1: every process)
//
// Prints "attached"; when it is interrupted "EVENTS LOST WRONG": events that were read, lost, and damaged.
#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "tls_tool.h"
#include "tls_tool.skel.h"

#define PAGES 64

static unsigned long long read_events, lost_events, wrong_events;

static volatile sig_atomic_t is_interrupted;

static void on_interrupt(int signal)
{
	is_interrupted = signal;
}

static void on_event(void *context, int cpu, void *data, __u32 bytes)
{
	const struct event *event = data;
	size_t head = offsetof(struct event, text);

	read_events++;
	// HTTP, in either direction.
	if (bytes <= head || event->bytes <= 0 || (strncmp(event->text, "GET ", 4) != 0) == event->is_read)
		wrong_events++;
}

static void on_lost(void *context, int cpu, __u64 count)
{
	lost_events += count;
}

static int attach(struct bpf_program *program, int pid, const char *library, const char *function, int returns)
{
	LIBBPF_OPTS(bpf_uprobe_opts, opts, .func_name = function, .retprobe = returns);

	return bpf_program__attach_uprobe_opts(program, pid, library, 0, &opts) ? 0 : -1;
}

int main(int argc, char **argv)
{
	struct perf_buffer *events;
	struct tls_tool_bpf *skel;
	int pid;

	if (argc != 3)
		return 2;
	pid = atoi(argv[1]);
	skel = tls_tool_bpf__open_and_load();
	if (!skel || attach(skel->progs.begin, pid, argv[2], "SSL_read", 0) || attach(skel->progs.end_read, pid, argv[2], "SSL_read", 1)
	    || attach(skel->progs.begin, pid, argv[2], "SSL_write", 0) || attach(skel->progs.end_write, pid, argv[2], "SSL_write", 1)) {
		fprintf(stderr, "tls_tool: cannot attach: %s\n", strerror(errno));
		return 1;
	}
	events = perf_buffer__new(bpf_map__fd(skel->maps.events), PAGES, on_event, on_lost, NULL, NULL);
	if (!events) {
		fprintf(stderr, "tls_tool: no buffers: %s\n", strerror(errno));
		return 1;
	}
	signal(SIGINT, on_interrupt);
	puts("attached");
	fflush(stdout);
	while (!is_interrupted)
		perf_buffer__poll(events, 100);
	perf_buffer__consume(events);
	printf("%llu %llu %llu\n", read_events, lost_events, wrong_events);
	return 0;
}
