// What libbpf makes of an object file: its types, its maps, and its programs' instructions when it would load them. The
// loading itself may fail; by then they are made.
#include <bpf/btf.h>
#include <bpf/libbpf.h>
#include <linux/bpf.h>
#include <stdio.h>

static int quiet(enum libbpf_print_level level, const char *format, va_list rest)
{
	(void)level, (void)format, (void)rest;
	return 0;
}

static void show(const unsigned char *bytes, size_t count)
{
	for (size_t at = 0; at < count; at++)
		printf("%02x", bytes[at]);
	printf("\n");
}

int main(int argc, char **argv)
{
	libbpf_set_print(quiet);
	struct bpf_object *object = argc == 2 ? bpf_object__open(argv[1]) : NULL;
	if (!object)
		return 1;
	// What the tools do before they load: maps that cannot be made would end it before the instructions are.
	struct bpf_map *map;
	bpf_object__for_each_map(map, object) {
		printf("map %s %d %u %u %u %#x %u %#llx\n", bpf_map__name(map), bpf_map__type(map), bpf_map__key_size(map),
		       bpf_map__value_size(map), bpf_map__max_entries(map), bpf_map__map_flags(map),
		       bpf_map__numa_node(map), (unsigned long long)bpf_map__map_extra(map));
		if (bpf_map__type(map) == BPF_MAP_TYPE_STACK_TRACE && !bpf_map__value_size(map))
			bpf_map__set_value_size(map, 127 * 8);
		if (!bpf_map__max_entries(map) && bpf_map__type(map) != BPF_MAP_TYPE_PERF_EVENT_ARRAY &&
		    bpf_map__type(map) != BPF_MAP_TYPE_TASK_STORAGE)
			bpf_map__set_max_entries(map, 1024);
	}
	bpf_object__load(object);
	bpf_object__for_each_map(map, object) {
		size_t count = 0;
		const unsigned char *value = bpf_map__initial_value(map, &count);
		printf("value of %s ", bpf_map__name(map));
		show(value, value ? count : 0);
	}
	bpf_object__for_each_map(map, object)
		printf("types of %s %u %u\n", bpf_map__name(map), bpf_map__btf_key_type_id(map),
		       bpf_map__btf_value_type_id(map));
	__u32 types_bytes = 0;
	const unsigned char *types = btf__raw_data(bpf_object__btf(object), &types_bytes);
	printf("types ");
	show(types, types_bytes);
	struct bpf_program *program;
	bpf_object__for_each_program(program, object) {
		const unsigned char *bytes = (const unsigned char *)bpf_program__insns(program);
		printf("program %s %d %d ", bpf_program__name(program), bpf_program__type(program),
		       bpf_program__expected_attach_type(program));
		show(bytes, bpf_program__insn_cnt(program) * sizeof(struct bpf_insn));
	}
	return 0;
}
