// SPDX-License-Identifier: MIT OR Apache-2.0
// Runs map operations inside programs, and measures maps: an ordinary libbpf tool, for ring3 and for the kernel.
//
//   maps_tool kernel|ring3
//
// The same bytecode runs in the kernel by BPF_PROG_TEST_RUN from threads or processes of this tool, and under ring3 at
// a probe in threads or processes of its own. It prints "ready" and obeys lines of input:
//
//   load TYPE KEY VALUE ENTRIES PROGRAM KEYS  a map with its program; KEYS: present, absent, fresh or repeated ones
//   attach PID BINARY                         (ring3) the program runs in that process
//   run THREADS RUNS                          (kernel) so many threads run the program so often
//   produce PROCESSES RUNS                    (kernel) so many processes run it so often
//   times                                     median picoseconds of an operation, successes and runs since the last time
//   consume / end                             a consumer reads the ring buffer; what it and the producers counted
//   memory TYPE KEY VALUE ENTRIES             bytes of such a map with 0, 10 and all elements; its creation, ns
#include "threads.h"
#include "text.h"
#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include "maps_tool.h"
#include "maps_tool.skel.h"
#include "../measured.h"

#define ATTACHED_MAX 16
#define BATCH 4096
#define CREATIONS 9

static int native;
static struct maps_tool_bpf *skel;
static struct bpf_program *program;
static struct bpf_link *links[ATTACHED_MAX];
static int attached;

static int quiet(enum libbpf_print_level level, const char *format, va_list args)
{
	return level == LIBBPF_DEBUG ? 0 : vfprintf(stderr, format, args);
}

static void fail(const char *what)
{
	fprintf(stderr, "maps_tool: %s: %s\n", what, strerror(errno));
	exit(1);
}

static int by_size(const void *a, const void *b)
{
	unsigned long x = *(unsigned long *)a, y = *(unsigned long *)b;

	return x < y ? -1 : x > y;
}

// A key of a number: its first four bytes are the number, since arrays want that, or the length of the rest in bits,
// since tries do.
static void make_key(unsigned type, unsigned char *key, unsigned bytes, unsigned number)
{
	unsigned first = type == BPF_MAP_TYPE_LPM_TRIE ? (bytes - 4) * 8 : number;

	for (unsigned i = 0; i < bytes; i++)
		key[i] = i < 4 ? first >> (8 * i) : (number * 2654435761u) >> (i % 4 * 8);
}

static int of_maps(unsigned type)
{
	return type == BPF_MAP_TYPE_ARRAY_OF_MAPS || type == BPF_MAP_TYPE_HASH_OF_MAPS;
}

static int inner_map(void)
{
	return bpf_map_create(BPF_MAP_TYPE_ARRAY, "inner", 4, 8, 1, NULL);
}

// Values of types without keys have the size of keys.
static int keyless(unsigned type)
{
	return type == BPF_MAP_TYPE_QUEUE || type == BPF_MAP_TYPE_STACK || type == BPF_MAP_TYPE_BLOOM_FILTER;
}

static int per_cpu(unsigned type)
{
	return type == BPF_MAP_TYPE_PERCPU_ARRAY || type == BPF_MAP_TYPE_PERCPU_HASH ||
	       type == BPF_MAP_TYPE_LRU_PERCPU_HASH;
}

static void fill(unsigned type, unsigned key_bytes, unsigned value_bytes)
{
	unsigned char key[KEY_BYTES_MAX], *value = calloc(libbpf_num_possible_cpus(), (value_bytes + 7) & ~7);
	int fd = bpf_map__fd(skel->maps.map), inner = of_maps(type) ? inner_map() : -1;

	if (inner >= 0)
		memcpy(value, &inner, sizeof(inner));
	for (unsigned i = 0; i < KEYS; i++) {
		make_key(type, key, key_bytes, i);
		if (bpf_map_update_elem(fd, keyless(type) ? NULL : key, keyless(type) ? key : value, BPF_ANY))
			fail("fill");
	}
	close(inner);
	free(value);
}

static void prepare_keys(unsigned type, unsigned key_bytes, const char *which)
{
	unsigned order[KEYS], seed = 1;
	// A miss in an array is an index behind its end.
	unsigned first = strcmp(which, "present") == 0 ? 0 : 16 * KEYS;

	for (unsigned i = 0; i < KEYS; i++) {
		unsigned j = (seed = seed * 1103515245u + 12345u) / 65536 % (i + 1);

		order[i] = order[j];
		order[j] = i;
	}
	for (unsigned i = 0; i < KEYS + (SLOTS - 1) * KEYS_APART; i++)
		make_key(type, skel->bss->keys + i * key_bytes, key_bytes, first + order[i % KEYS]);
}

static void unload(void)
{
	while (attached > 0)
		bpf_link__destroy(links[--attached]);
	maps_tool_bpf__destroy(skel);
	skel = NULL;
}

static void load(unsigned type, unsigned key_bytes, unsigned value_bytes, unsigned entries, const char *name,
		 const char *which)
{
	struct bpf_program *each;

	unload();
	skel = maps_tool_bpf__open();
	if (!skel)
		fail("open");
	program = bpf_object__find_program_by_name(skel->obj, name);
	if (!program)
		fail(name);
	bpf_object__for_each_program(each, skel->obj)
		bpf_program__set_autoload(each, each == program);
	bpf_program__set_type(program, native ? BPF_PROG_TYPE_RAW_TRACEPOINT : BPF_PROG_TYPE_KPROBE);
	bpf_map__set_type(skel->maps.map, type);
	bpf_map__set_key_size(skel->maps.map, keyless(type) ? 0 : key_bytes);
	bpf_map__set_value_size(skel->maps.map, keyless(type) ? key_bytes : value_bytes);
	bpf_map__set_max_entries(skel->maps.map, entries);
	if (type == BPF_MAP_TYPE_LPM_TRIE)
		bpf_map__set_map_flags(skel->maps.map, BPF_F_NO_PREALLOC);
	if (of_maps(type) && bpf_map__set_inner_map_fd(skel->maps.map, inner_map()))
		fail("inner map");
	if (of_maps(type))
		bpf_map__set_value_size(skel->maps.map, 4);
	skel->rodata->key_bytes = key_bytes;
	prepare_keys(type, key_bytes, which);
	if (maps_tool_bpf__load(skel))
		fail("load");
	fill(type, key_bytes, value_bytes);
	puts("loaded");
}

static void attach(int pid, const char *binary)
{
	LIBBPF_OPTS(bpf_uprobe_opts, opts, .func_name = "maps_victim_call");

	if (attached == ATTACHED_MAX)
		fail("attach");
	links[attached] = bpf_program__attach_uprobe_opts(program, pid, binary, 0, &opts);
	if (!links[attached++])
		fail("attach");
	puts("attached");
}

static void run_here(long runs)
{
	LIBBPF_OPTS(bpf_test_run_opts, opts);

	for (long i = 0; i < runs; i++)
		if (bpf_prog_test_run_opts(bpf_program__fd(program), &opts))
			fail("BPF_PROG_TEST_RUN");
}

static void run(long threads, long runs)
{
	if (!run_together(threads, runs, run_here))
		fail("threads");
	puts("done");
}

static void produce(long processes, long runs)
{
	for (long i = 0; i < processes; i++)
		if (fork() == 0) {
			run_here(runs);
			_exit(0);
		}
	for (long i = 0; i < processes; i++)
		wait(NULL);
	puts("done");
}

static void print_times(void)
{
	unsigned long runs = skel->bss->result.runs, kept = runs < TIMES ? runs : TIMES;
	unsigned long *times = (unsigned long *)skel->bss->result.times;

	qsort(times, kept, sizeof(*times), by_size);
	printf("%lu %lu %lu\n", kept ? times[kept / 2] * 1000 / OPERATIONS : 0, (long)skel->bss->result.succeeded, runs);
	skel->bss->result.runs = skel->bss->result.succeeded = 0;
}

// ---- the consumer ----

static unsigned long next_of[PRODUCERS], consumed, disordered;
static volatile int consuming;
static pthread_t consumer;

static int take(void *context, void *data, size_t bytes)
{
	unsigned long *record = data;

	consumed++;
	if (bytes != RECORD_WORDS * 8 || record[0] >= PRODUCERS || next_of[record[0]] != record[1])
		disordered++;
	next_of[record[0] % PRODUCERS] = record[1] + 1;
	return 0;
}

static void *consume_here(void *buffer)
{
	while (consuming)
		ring_buffer__poll(buffer, 10);
	ring_buffer__consume(buffer);
	ring_buffer__free(buffer);
	return NULL;
}

static void consume(void)
{
	struct ring_buffer *buffer = ring_buffer__new(bpf_map__fd(skel->maps.ring), take, NULL, NULL);

	if (!buffer)
		fail("ring buffer");
	consumed = disordered = 0;
	memset(skel->bss->producers, 0, sizeof(skel->bss->producers));
	memset(next_of, 0, sizeof(next_of));
	consuming = 1;
	pthread_create(&consumer, NULL, consume_here, buffer);
	puts("consuming");
}

static void end(void)
{
	unsigned long sent = 0, lost = 0, lost_with_room = 0;

	consuming = 0;
	pthread_join(consumer, NULL);
	for (int i = 0; i < PRODUCERS; i++) {
		sent += skel->bss->producers[i].sent;
		lost += skel->bss->producers[i].lost;
		lost_with_room += skel->bss->producers[i].lost_with_room;
	}
	printf("%lu %lu %lu %lu %lu\n", sent, consumed, disordered, lost, lost_with_room);
}

// ---- memory ----

// What the kernel accounts for a map; what the file behind a map of ring3 takes.
static unsigned long bytes_of(int fd)
{
	unsigned long bytes = 0;
	struct stat state;
	char text[256];
	FILE *file;

	if (!native)
		return fstat(fd, &state) ? 0 : state.st_blocks * 512ul;
	snprintf(text, sizeof(text), "/proc/self/fdinfo/%d", fd);
	file = fopen(text, "r");
	while (file && fgets(text, sizeof(text), file))
		sscanf(text, "memlock: %lu", &bytes);
	if (file)
		fclose(file);
	return bytes;
}

static void fill_up_to(int fd, unsigned type, unsigned key_bytes, unsigned value_bytes, unsigned from, unsigned to)
{
	unsigned stride = per_cpu(type) ? libbpf_num_possible_cpus() * ((value_bytes + 7) & ~7) : value_bytes;
	unsigned char *keys = calloc(BATCH, key_bytes), *values = calloc(BATCH, stride);

	while (from < to) {
		unsigned count = to - from < BATCH ? to - from : BATCH, i;

		for (i = 0; i < count; i++)
			make_key(type, keys + i * key_bytes, key_bytes, from + i);
		if (keyless(type))
			for (i = 0; i < count && !bpf_map_update_elem(fd, NULL, values, BPF_ANY); i++)
				;
		else if (bpf_map_update_batch(fd, keys, values, &count, NULL))
			fail("fill");
		from += count;
	}
	free(keys);
	free(values);
}

static void memory(unsigned type, unsigned key_bytes, unsigned value_bytes, unsigned entries)
{
	LIBBPF_OPTS(bpf_map_create_opts, opts, .map_flags = type == BPF_MAP_TYPE_LPM_TRIE ? BPF_F_NO_PREALLOC : 0);
	unsigned long bytes[3], took[CREATIONS], begin;
	int fd = -1;

	for (int i = 0; i < CREATIONS; i++) {
		close(fd);
		begin = nanoseconds();
		fd = bpf_map_create(type, "memory", keyless(type) ? 0 : key_bytes, value_bytes, entries, &opts);
		took[i] = nanoseconds() - begin;
		if (fd < 0)
			fail("create");
	}
	qsort(took, CREATIONS, sizeof(*took), by_size);
	bytes[0] = bytes_of(fd);
	fill_up_to(fd, type, key_bytes, value_bytes, 0, 10);
	bytes[1] = bytes_of(fd);
	fill_up_to(fd, type, key_bytes, value_bytes, 10, entries);
	bytes[2] = bytes_of(fd);
	close(fd);
	printf("%lu %lu %lu %lu\n", bytes[0], bytes[1], bytes[2], took[CREATIONS / 2]);
}

int main(int argc, char **argv)
{
	char line[512], one[256], two[256];
	unsigned type, key, value, entries;
	long a, b;

	if (argc != 2)
		return 2;
	native = strcmp(argv[1], "kernel") == 0;
	setvbuf(stdout, NULL, _IOLBF, 0);
	libbpf_set_print(quiet);
	if (make_text())
		fail("text");
	puts("ready");
	while (fgets(line, sizeof(line), stdin)) {
		if (sscanf(line, "load %u %u %u %u %255s %255s", &type, &key, &value, &entries, one, two) == 6)
			load(type, key, value, entries, one, two);
		else if (sscanf(line, "attach %ld %255s", &a, one) == 2)
			attach(a, one);
		else if (sscanf(line, "run %ld %ld", &a, &b) == 2)
			run(a, b);
		else if (sscanf(line, "produce %ld %ld", &a, &b) == 2)
			produce(a, b);
		else if (sscanf(line, "memory %u %u %u %u", &type, &key, &value, &entries) == 4)
			memory(type, key, value, entries);
		else if (strcmp(line, "times\n") == 0)
			print_times();
		else if (strcmp(line, "consume\n") == 0)
			consume();
		else if (strcmp(line, "end\n") == 0)
			end();
		else
			return 2;
	}
	unload();
	return 0;
}
