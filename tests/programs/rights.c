// Asks for what needs rights, and prints what each call says. Without libbpf, so that nothing is asked for besides.
//   rights asks          with the credentials that the process has
//   rights gives CMD...  makes objects, and runs CMD with them: `... rights gets`
//   rights gets          uses the objects
//   rights fds           descriptors that are none, closed, or of something else
//   rights reads         what is pinned: by `gives`, by its path
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/bpf.h>
#include <linux/perf_event.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { MAP = 100, PROBE, RAW, CALL, EVENT, OTHER };
#define PIN "/sys/fs/bpf/ring3-rights"

static char verdict[4096];

__attribute__((noinline)) void probed(void)
{
	__asm__ volatile("nop; nop; nop; nop; nop; nop");
}

static void say(const char *what, long result)
{
	const char *name = strerrorname_np(errno);

	// The kernel's own numbers, ENOTSUPP for one, have no names.
	if (result < 0 && !name)
		printf("%s: %d\n", what, errno);
	else
		printf("%s: %s\n", what, result < 0 ? name : "ok");
	fflush(stdout);
}

static long bpf(int command, union bpf_attr *attr)
{
	return syscall(SYS_bpf, command, attr, sizeof *attr);
}

static long map_create(int type, int key, int value, int entries)
{
	union bpf_attr attr = { .map_type = type, .key_size = key, .value_size = value, .max_entries = entries };
	return bpf(BPF_MAP_CREATE, &attr);
}

static long prog_load(int type, int flags, const struct bpf_insn *insns, int count)
{
	union bpf_attr attr = { .prog_type = type, .insns = (unsigned long)insns, .insn_cnt = count };
	attr.license = (unsigned long)"GPL";
	attr.prog_flags = flags;
	attr.log_level = 1;
	attr.log_buf = (unsigned long)verdict;
	attr.log_size = sizeof verdict;
	verdict[0] = 0;
	return bpf(BPF_PROG_LOAD, &attr);
}

static const struct bpf_insn nothing[] = {
	{ .code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = 0, .imm = 0 },
	{ .code = BPF_JMP | BPF_EXIT },
};

// bpf_probe_write_user(0, fp - 8, 8)
static const struct bpf_insn writes[] = {
	{ .code = BPF_ST | BPF_MEM | BPF_DW, .dst_reg = 10, .off = -8, .imm = 0 },
	{ .code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = 1, .imm = 0 },
	{ .code = BPF_ALU64 | BPF_MOV | BPF_X, .dst_reg = 2, .src_reg = 10 },
	{ .code = BPF_ALU64 | BPF_ADD | BPF_K, .dst_reg = 2, .imm = -8 },
	{ .code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = 3, .imm = 8 },
	{ .code = BPF_JMP | BPF_CALL, .imm = BPF_FUNC_probe_write_user },
	{ .code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = 0, .imm = 0 },
	{ .code = BPF_JMP | BPF_EXIT },
};

static long load_nothing(int type, int flags)
{
	return prog_load(type, flags, nothing, 2);
}

// Where `probed` is in the file that this process runs.
static unsigned long offset_of_probed(void)
{
	char line[4096];
	FILE *maps = fopen("/proc/self/maps", "r");
	unsigned long start, end, offset, at = (unsigned long)probed;

	while (fgets(line, sizeof line, maps))
		if (sscanf(line, "%lx-%lx %*s %lx", &start, &end, &offset) == 3 && at >= start && at < end)
			return fclose(maps), at - start + offset;
	abort();
}

static long event_open(struct perf_event_attr *attr, int pid)
{
	attr->size = sizeof *attr;
	return syscall(SYS_perf_event_open, attr, pid, pid == -1 ? 0 : -1, -1, PERF_FLAG_FD_CLOEXEC);
}

static int number_in(const char *path)
{
	int number = -1;
	FILE *file = fopen(path, "r");
	if (file && fscanf(file, "%d", &number) != 1)
		number = -1;
	if (file)
		fclose(file);
	return number;
}

static long uprobe_open(int pid)
{
	static char path[4096];
	struct perf_event_attr attr = { .type = number_in("/sys/bus/event_source/devices/uprobe/type") };

	path[readlink("/proc/self/exe", path, sizeof path - 1)] = 0;
	attr.config1 = (unsigned long)path;
	attr.config2 = offset_of_probed();
	return event_open(&attr, pid);
}

static long output_open(int pid)
{
	struct perf_event_attr attr = { .type = PERF_TYPE_SOFTWARE, .config = PERF_COUNT_SW_BPF_OUTPUT };
	attr.sample_type = PERF_SAMPLE_RAW;
	return event_open(&attr, pid);
}

static void ask_ids(void)
{
	static const struct { const char *name; int command; } commands[] = {
		{ "PROG_GET_NEXT_ID", BPF_PROG_GET_NEXT_ID }, { "MAP_GET_NEXT_ID", BPF_MAP_GET_NEXT_ID },
		{ "BTF_GET_NEXT_ID", BPF_BTF_GET_NEXT_ID }, { "LINK_GET_NEXT_ID", BPF_LINK_GET_NEXT_ID },
		{ "PROG_GET_FD_BY_ID", BPF_PROG_GET_FD_BY_ID }, { "MAP_GET_FD_BY_ID", BPF_MAP_GET_FD_BY_ID },
		{ "BTF_GET_FD_BY_ID", BPF_BTF_GET_FD_BY_ID }, { "LINK_GET_FD_BY_ID", BPF_LINK_GET_FD_BY_ID },
	};
	for (unsigned i = 0; i < sizeof commands / sizeof *commands; i++) {
		// No object has such an id.
		union bpf_attr attr = { .start_id = 0x7ffffffe };
		say(commands[i].name, bpf(commands[i].command, &attr));
	}
}

static void ask(const char *other)
{
	static const struct { const char *name; int type, key, value, entries; } maps[] = {
		{ "map ARRAY", BPF_MAP_TYPE_ARRAY, 4, 8, 1 }, { "map HASH", BPF_MAP_TYPE_HASH, 4, 8, 1 },
		{ "map RINGBUF", BPF_MAP_TYPE_RINGBUF, 0, 0, 4096 }, { "map STACK_TRACE", BPF_MAP_TYPE_STACK_TRACE, 4, 8, 1 },
		{ "map QUEUE", BPF_MAP_TYPE_QUEUE, 0, 8, 1 }, { "map ARRAY of nothing", BPF_MAP_TYPE_ARRAY, 4, 0, 0 },
	};
	static const struct { const char *name; int type, flags; } programs[] = {
		{ "program KPROBE", BPF_PROG_TYPE_KPROBE, 0 }, { "program TRACEPOINT", BPF_PROG_TYPE_TRACEPOINT, 0 },
		{ "program RAW_TRACEPOINT", BPF_PROG_TYPE_RAW_TRACEPOINT, 0 },
		{ "program PERF_EVENT", BPF_PROG_TYPE_PERF_EVENT, 0 },
		{ "program SOCKET_FILTER", BPF_PROG_TYPE_SOCKET_FILTER, 0 },
		{ "program XDP", BPF_PROG_TYPE_XDP, 0 }, { "program SCHED_CLS", BPF_PROG_TYPE_SCHED_CLS, 0 },
		{ "program SYSCALL", BPF_PROG_TYPE_SYSCALL, BPF_F_SLEEPABLE },
		{ "program SYSCALL that does not sleep", BPF_PROG_TYPE_SYSCALL, 0 },
	};
	union bpf_attr attr;

	for (unsigned i = 0; i < sizeof maps / sizeof *maps; i++)
		say(maps[i].name, map_create(maps[i].type, maps[i].key, maps[i].value, maps[i].entries));
	for (unsigned i = 0; i < sizeof programs / sizeof *programs; i++) {
		long result = load_nothing(programs[i].type, programs[i].flags);
		say(programs[i].name, result);
		if (result < 0 && verdict[0])
			printf("  %.*s\n", (int)strcspn(verdict, "\n"), verdict);
	}
	say("program of no instruction", prog_load(BPF_PROG_TYPE_KPROBE, 0, nothing, 0));
	say("program that writes to processes", prog_load(BPF_PROG_TYPE_KPROBE, 0, writes, 8));
	attr = (union bpf_attr){ .btf = (unsigned long)"", .btf_size = 0 };
	say("BTF_LOAD", bpf(BPF_BTF_LOAD, &attr));
	ask_ids();
	attr = (union bpf_attr){ .task_fd_query = { .pid = getpid(), .fd = 0 } };
	say("TASK_FD_QUERY", bpf(BPF_TASK_FD_QUERY, &attr));
	say("uprobe of all", uprobe_open(-1));
	say("uprobe of itself", uprobe_open(0));
	say("uprobe of another", uprobe_open(atoi(other)));
	say("uprobe of nobody", uprobe_open(0x3fffffff));
	say("output of all", output_open(-1));
}

static void keep(long fd, int number)
{
	if (fd < 0 || dup2(fd, number) < 0) {
		perror("an object cannot be made");
		exit(1);
	}
	close(fd);
}

static void pin(int fd)
{
	union bpf_attr attr = { .pathname = (unsigned long)PIN, .bpf_fd = fd };
	unlink(PIN);
	say("pin", bpf(BPF_OBJ_PIN, &attr));
}

static void give(char **command)
{
	keep(map_create(BPF_MAP_TYPE_ARRAY, 4, 8, 1), MAP);
	keep(load_nothing(BPF_PROG_TYPE_KPROBE, 0), PROBE);
	keep(load_nothing(BPF_PROG_TYPE_RAW_TRACEPOINT, 0), RAW);
	keep(load_nothing(BPF_PROG_TYPE_SYSCALL, BPF_F_SLEEPABLE), CALL);
	keep(uprobe_open(-1), EVENT);
	keep(uprobe_open(-1), OTHER);
	execvp(*command, command);
	perror(*command);
	exit(127);
}

static void read_pin(void)
{
	union bpf_attr attr = { .pathname = (unsigned long)PIN };
	say("OBJ_GET", bpf(BPF_OBJ_GET, &attr));
	attr.file_flags = BPF_F_RDONLY;
	say("OBJ_GET to read", bpf(BPF_OBJ_GET, &attr));
	say("unlink", unlink(PIN));
}

static void get(void)
{
	unsigned key = 0;
	unsigned long value = 7;
	struct bpf_prog_info info = {};
	union bpf_attr attr = { .map_fd = MAP, .key = (unsigned long)&key, .value = (unsigned long)&value };

	say("update", bpf(BPF_MAP_UPDATE_ELEM, &attr));
	say("lookup", bpf(BPF_MAP_LOOKUP_ELEM, &attr));
	attr = (union bpf_attr){ .info = { .bpf_fd = PROBE, .info_len = sizeof info, .info = (unsigned long)&info } };
	say("info", bpf(BPF_OBJ_GET_INFO_BY_FD, &attr));
	printf("code is %s\n", info.xlated_prog_len ? "told" : "not told");
	printf("made by %u\n", info.created_by_uid);
	attr = (union bpf_attr){ .test = { .prog_fd = CALL } };
	say("run", bpf(BPF_PROG_TEST_RUN, &attr));
	say("SET_BPF", ioctl(OTHER, PERF_EVENT_IOC_SET_BPF, PROBE));
	attr = (union bpf_attr){ .link_create = { .prog_fd = PROBE, .target_fd = EVENT, .attach_type = BPF_PERF_EVENT } };
	say("link", bpf(BPF_LINK_CREATE, &attr));
	attr = (union bpf_attr){ .raw_tracepoint = { .name = (unsigned long)"sys_enter", .prog_fd = RAW } };
	say("raw tracepoint", bpf(BPF_RAW_TRACEPOINT_OPEN, &attr));
	say("a new event", uprobe_open(-1));
	say("a new map", map_create(BPF_MAP_TYPE_ARRAY, 4, 8, 1));
	attr = (union bpf_attr){ .map_fd = MAP };
	say("freeze", bpf(BPF_MAP_FREEZE, &attr));
}

static void try_call(const char *of, const char *name, int command, union bpf_attr *attr)
{
	long result = bpf(command, attr);

	printf("%s ", of);
	say(name, result);
	if (result > 0)
		close(result);
}

// Programs of all types are attached to something, taken away, and asked for.
static void try_attach_types(const char *of, int fd, int program, int file)
{
	enum { TYPES = 64, TCX_INGRESS = 46, TCX_EGRESS };

	for (unsigned type = 0; type < TYPES; type++) {
		const struct { const char *name; int command; union bpf_attr attr; } calls[] = {
			{ "ATTACH", BPF_PROG_ATTACH, { .target_fd = file, .attach_bpf_fd = fd, .attach_type = type } },
			{ "ATTACH to it", BPF_PROG_ATTACH, { .target_fd = fd, .attach_bpf_fd = program, .attach_type = type } },
			{ "DETACH", BPF_PROG_DETACH, { .target_fd = file, .attach_bpf_fd = fd, .attach_type = type } },
			{ "DETACH from it", BPF_PROG_DETACH, { .target_fd = fd, .attach_bpf_fd = program, .attach_type = type } },
			{ "QUERY", BPF_PROG_QUERY, { .query = { .target_fd = fd, .attach_type = type } } },
		};
		for (unsigned call = 0; call < sizeof calls / sizeof *calls; call++) {
			union bpf_attr attr = calls[call].attr;
			char name[64];

			// There the number is not a descriptor's but a network device's.
			if (calls[call].command == BPF_PROG_QUERY && (type == TCX_INGRESS || type == TCX_EGRESS))
				continue;
			snprintf(name, sizeof name, "%s, type %u", calls[call].name, type);
			try_call(of, name, calls[call].command, &attr);
		}
	}
}

static void try_fds(void)
{
	static unsigned key;
	static unsigned long value[64];
	const int map = map_create(BPF_MAP_TYPE_ARRAY, 4, 8, 1), program = load_nothing(BPF_PROG_TYPE_KPROBE, 0);
	const int event = uprobe_open(-1), file = open("/dev/null", O_RDONLY);
	const struct { const char *name; int fd; } fds[] = {
		{ "-1", -1 }, { "closed", 999 }, { "file", file }, { "map", map }, { "program", program }, { "event", event },
	};
	for (unsigned i = 0; i < sizeof fds / sizeof *fds; i++) {
		const unsigned fd = fds[i].fd;
		const unsigned long k = (unsigned long)&key, v = (unsigned long)value;
#define ELEMENT { .map_fd = fd, .key = k, .value = v }
		const struct { const char *name; int command; union bpf_attr attr; } calls[] = {
			{ "MAP_LOOKUP_ELEM", BPF_MAP_LOOKUP_ELEM, ELEMENT },
			{ "MAP_UPDATE_ELEM", BPF_MAP_UPDATE_ELEM, ELEMENT },
			{ "MAP_DELETE_ELEM", BPF_MAP_DELETE_ELEM, { .map_fd = fd, .key = k } },
			{ "MAP_GET_NEXT_KEY", BPF_MAP_GET_NEXT_KEY, ELEMENT },
			{ "MAP_LOOKUP_AND_DELETE_ELEM", BPF_MAP_LOOKUP_AND_DELETE_ELEM, ELEMENT },
			{ "MAP_LOOKUP_BATCH", BPF_MAP_LOOKUP_BATCH, { .batch = { .map_fd = fd, .out_batch = v, .keys = k, .values = v } } },
			{ "MAP_UPDATE_BATCH", BPF_MAP_UPDATE_BATCH, { .batch = { .map_fd = fd, .keys = k, .values = v } } },
			{ "MAP_DELETE_BATCH", BPF_MAP_DELETE_BATCH, { .batch = { .map_fd = fd, .keys = k } } },
			{ "MAP_CREATE with an inner map", BPF_MAP_CREATE, { .map_type = BPF_MAP_TYPE_ARRAY_OF_MAPS, .key_size = 4, .value_size = 4, .max_entries = 1, .inner_map_fd = fd } },
			{ "MAP_CREATE with types", BPF_MAP_CREATE, { .map_type = BPF_MAP_TYPE_ARRAY, .key_size = 4, .value_size = 8, .max_entries = 1, .btf_fd = fd, .btf_key_type_id = 1, .btf_value_type_id = 1 } },
			{ "PROG_LOAD with types", BPF_PROG_LOAD, { .prog_type = BPF_PROG_TYPE_KPROBE, .insns = (unsigned long)nothing, .insn_cnt = 2, .license = (unsigned long)"GPL", .prog_btf_fd = fd, .func_info_cnt = 1, .func_info_rec_size = 8, .func_info = v } },
			{ "OBJ_PIN", BPF_OBJ_PIN, { .pathname = (unsigned long)"/ring3-nowhere/name", .bpf_fd = fd } },
			{ "PROG_TEST_RUN", BPF_PROG_TEST_RUN, { .test = { .prog_fd = fd } } },
			{ "OBJ_GET_INFO_BY_FD", BPF_OBJ_GET_INFO_BY_FD, { .info = { .bpf_fd = fd, .info_len = sizeof value, .info = v } } },
			{ "RAW_TRACEPOINT_OPEN", BPF_RAW_TRACEPOINT_OPEN, { .raw_tracepoint = { .prog_fd = fd, .name = (unsigned long)"sys_enter" } } },
			{ "TASK_FD_QUERY", BPF_TASK_FD_QUERY, { .task_fd_query = { .pid = getpid(), .fd = fd } } },
			{ "MAP_FREEZE", BPF_MAP_FREEZE, { .map_fd = fd } },
			{ "LINK_CREATE", BPF_LINK_CREATE, { .link_create = { .prog_fd = fd, .target_fd = file, .attach_type = BPF_PERF_EVENT } } },
			{ "LINK_CREATE to it", BPF_LINK_CREATE, { .link_create = { .prog_fd = program, .target_fd = fd, .attach_type = BPF_PERF_EVENT } } },
			{ "LINK_UPDATE", BPF_LINK_UPDATE, { .link_update = { .link_fd = fd, .new_prog_fd = program } } },
			{ "LINK_DETACH", BPF_LINK_DETACH, { .link_detach = { .link_fd = fd } } },
			{ "ITER_CREATE", BPF_ITER_CREATE, { .iter_create = { .link_fd = fd } } },
			{ "PROG_BIND_MAP", BPF_PROG_BIND_MAP, { .prog_bind_map = { .prog_fd = fd, .map_fd = map } } },
			{ "PROG_BIND_MAP of it", BPF_PROG_BIND_MAP, { .prog_bind_map = { .prog_fd = program, .map_fd = fd } } },
		};
		for (unsigned call = 0; call < sizeof calls / sizeof *calls; call++) {
			union bpf_attr attr = calls[call].attr;
			memset(value, 0, sizeof value);
			try_call(fds[i].name, calls[call].name, calls[call].command, &attr);
		}
		// Newer than this machine's headers, perhaps: BPF_TOKEN_CREATE, BPF_PROG_STREAM_READ_BY_FD.
		unsigned words[sizeof(union bpf_attr) / 4] = { 0, fd };
		try_call(fds[i].name, "TOKEN_CREATE", 36, (void *)words);
		memset(words, 0, sizeof words);
		words[4] = fd;
		try_call(fds[i].name, "PROG_STREAM_READ_BY_FD", 37, (void *)words);
		try_attach_types(fds[i].name, fd, program, file);
	}
}

int main(int argc, char **argv)
{
	const char *mode = argc > 1 ? argv[1] : "";

	if (!strcmp(mode, "asks") && argc > 2)
		ask(argv[2]);
	else if (!strcmp(mode, "gives") && argc > 2)
		give(argv + 2);
	else if (!strcmp(mode, "gets"))
		get();
	else if (!strcmp(mode, "fds"))
		try_fds();
	else if (!strcmp(mode, "pins") && argc > 2)
		keep(map_create(BPF_MAP_TYPE_ARRAY, 4, 8, 1), MAP), pin(MAP), execvp(argv[2], argv + 2), perror(argv[2]);
	else if (!strcmp(mode, "reads"))
		read_pin();
	else
		return fputs("rights asks PID | gives CMD... | gets | fds | pins CMD... | reads\n", stderr), 2;
	return 0;
}
