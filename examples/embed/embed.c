// A server that hosts an eBPF extension: `cc embed.c $(pkg-config --cflags --libs ring3)`, then `./a.out filter.bpf.o`.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <ring3.h>

#include "request.h"

static void check(int result)
{
	if (result < 0) {
		fprintf(stderr, "%s\n%s", ring3_error(), ring3_log());
		exit(1);
	}
}

// The server's function that the extension calls. The verifier has proved that `user` leads to `bytes` bytes.
static uint64_t is_known(uint64_t user, uint64_t bytes, uint64_t r3, uint64_t r4, uint64_t r5, void *known)
{
	(void)r3, (void)r4, (void)r5;
	return strncmp((const char *)user, known, bytes) == 0;
}

static int print_refused(void *unused, const void *record, size_t bytes)
{
	const struct request *request = record;

	(void)unused, (void)bytes;
	printf("refused: %s of %s\n", request->path, request->user);
	return 0;
}

int main(int argc, char **argv)
{
	struct request requests[] = {
		{ 80, 0, "guest", "/index.html" },
		{ 80, 0, "guest", "/admin/users" },
		{ 443, 0, "root", "/admin/users" },
	};
	const struct ring3_parameter parameters[] = {
		{ .kind = RING3_POINTER, .use = RING3_READS },
		{ .kind = RING3_SIZE, .bytes = sizeof(requests[0].user) },
	};
	const struct ring3_result truth = { .kind = RING3_RETURNS_NUMBER, .least = 0, .greatest = 1 };
	uint64_t verdict, count, seen;
	uint32_t port, last;
	ring3_vm *vm = ring3_vm_new();

	if (!vm)
		check(-1);
	if (argc > 2)
		check(ring3_set_engine(vm, RING3_INTERPRETER));
	check(ring3_set_memory(vm, sizeof(struct request), 1));
	check(ring3_register(vm, "is_known", RING3_NO_NUMBER, is_known, "root", parameters, 2, &truth));
	check(ring3_load_file(vm, argc > 1 ? argv[1] : "filter.bpf.o"));

	ring3_program *filter = ring3_program_find(vm, "filter");
	ring3_map *by_port = ring3_map_find(vm, "requests_by_port");
	ring3_map *refused = ring3_map_find(vm, "refused");
	ring3_map *variables = ring3_map_find(vm, ".bss");
	if (!filter || !by_port || !refused || !variables)
		check(-1);

	for (size_t i = 0; i < sizeof(requests) / sizeof(*requests); i++) {
		check(ring3_call(filter, &requests[i], sizeof(requests[i]), &verdict));
		printf("%s: %s\n", requests[i].path, verdict == VERDICT_PASS ? "pass" : "refuse");
	}
	check((int)ring3_map_consume(refused, print_refused, NULL));
	for (int more = ring3_map_next_key(by_port, NULL, &port); more == 1; more = ring3_map_next_key(by_port, &last, &port)) {
		last = port;
		check(ring3_map_lookup(by_port, &port, &count));
		printf("port %u: %llu\n", port, (unsigned long long)count);
	}
	check(ring3_map_read(variables, 0, &seen, sizeof(seen)));
	printf("seen: %llu\n", (unsigned long long)seen);
	ring3_vm_free(vm);
	return 0;
}
