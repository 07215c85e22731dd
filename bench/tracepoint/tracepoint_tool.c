// SPDX-License-Identifier: MIT OR Apache-2.0
// One program on the event of one process, with a reader that writes what is recorded to a file: an ordinary libbpf tool, for ring3 and
// for the kernel.
//
//   tracepoint_tool PID BINARY PROGRAM FILE
//
// Prints "attached". On each line of input it empties the buffer and prints "WRITTEN LOST", how many records are in the file and how many
// events found no room. At the end of input it detaches and ends.
#include <bpf/libbpf.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "tracepoint_tool.h"
#include "tracepoint_tool.skel.h"

// How often the reader looks.
#define LOOK_MS 1

static FILE *file;
static unsigned long long written;

static int on_record(void *context, void *data, size_t bytes)
{
	if (bytes < sizeof(struct record) || fwrite(data, sizeof(struct record), 1, file) != 1)
		return -EIO;
	written++;
	return 0;
}

static int fail(const char *what)
{
	fprintf(stderr, "tracepoint_tool: %s: %s\n", what, strerror(errno));
	return 1;
}

int main(int argc, char **argv)
{
	struct bpf_program *program, *wanted;
	struct tracepoint_tool_bpf *tool;
	struct ring_buffer *records;
	char line[16];

	if (argc != 5) {
		fprintf(stderr, "usage: tracepoint_tool PID BINARY PROGRAM FILE\n");
		return 2;
	}
	setvbuf(stdout, NULL, _IOLBF, 0);
	file = fopen(argv[4], "w");
	if (!file)
		return fail(argv[4]);
	tool = tracepoint_tool_bpf__open();
	if (!tool)
		return fail("open");
	wanted = bpf_object__find_program_by_name(tool->obj, argv[3]);
	if (!wanted)
		return fail(argv[3]);
	bpf_object__for_each_program(program, tool->obj)
		bpf_program__set_autoload(program, program == wanted);
	if (tracepoint_tool_bpf__load(tool))
		return fail("load");
	records = ring_buffer__new(bpf_map__fd(tool->maps.records), on_record, NULL, NULL);
	if (!records)
		return fail("buffer");
	if (!bpf_program__attach_usdt(wanted, atoi(argv[1]), argv[2], "bench", "event", NULL))
		return fail("attach");
	puts("attached");
	for (;;) {
		struct pollfd input = { .fd = 0, .events = POLLIN };

		if (poll(&input, 1, LOOK_MS) < 0 && errno != EINTR)
			return fail("poll");
		if (ring_buffer__consume(records) < 0)
			return fail("consume");
		if (!(input.revents & (POLLIN | POLLHUP)))
			continue;
		if (read(0, line, sizeof(line)) <= 0)
			break;
		if (ring_buffer__consume(records) < 0 || fflush(file))
			return fail("write");
		printf("%llu %llu\n", written, tool->bss->lost);
	}
	return fclose(file) ? fail(argv[4]) : 0;
}
