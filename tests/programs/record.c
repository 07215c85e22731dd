// For LD_PRELOAD: writes down the programs that a process loads, and what the kernel says of each.
//
// Every library comes to bpf(2) by `syscall`. Of maps nothing is remembered that can be asked: at each load, the
// descriptors that the instructions name are what they are then, whoever made, duplicated or closed them before.
// What cannot be attached is pretended to be, so that tools that attach before they load the next program go on; so
// are files that tell what there is to attach to.
//
// $RING3_RECORD is a directory; each load appends a line of JSON to a file in it.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/bpf.h>
#include <linux/perf_event.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define LOG_BYTES (16u << 20)
#define LOG_WAY 1
#define LOG_STATS 4
#define MAPS_MAX 64
#define OUTER_MAX 256

// The system call as libc makes it, with the kernel's own result.
static long raw(long number, long a, long b, long c, long d, long e, long f)
{
	static long (*libc)(long, ...);
	if (!libc)
		libc = dlsym(RTLD_NEXT, "syscall");
	int before = errno;
	long result = libc(number, a, b, c, d, e, f);
	if (result == -1) {
		result = -errno;
		errno = before;
	}
	return result;
}

static long bpf(int command, union bpf_attr *attr, unsigned size)
{
	return raw(SYS_bpf, command, (long)attr, size, 0, 0, 0);
}

static bool ask(int fd, struct bpf_map_info *info)
{
	union bpf_attr attr = {};
	memset(info, 0, sizeof *info);
	attr.info.bpf_fd = fd;
	attr.info.info_len = sizeof *info;
	attr.info.info = (uintptr_t)info;
	return bpf(BPF_OBJ_GET_INFO_BY_FD, &attr, sizeof attr) == 0;
}

// What maps of maps hold, which the kernel does not tell later: by their ids, which come only once.
static struct outer {
	uint32_t id;
	struct bpf_map_info inner;
} outers[OUTER_MAX];
static unsigned outers_count;
static pthread_mutex_t outers_lock = PTHREAD_MUTEX_INITIALIZER;

static void remember_inner(int outer, int inner)
{
	struct bpf_map_info info;
	struct outer entry;
	if (!ask(outer, &info) || !ask(inner, &entry.inner))
		return;
	entry.id = info.id;
	pthread_mutex_lock(&outers_lock);
	if (outers_count < OUTER_MAX)
		outers[outers_count++] = entry;
	pthread_mutex_unlock(&outers_lock);
}

static void write_hex(FILE *out, const uint8_t *bytes, size_t count)
{
	fputc('"', out);
	for (size_t at = 0; at < count; at++)
		fprintf(out, "%02x", bytes[at]);
	fputc('"', out);
}

static void write_text(FILE *out, const char *text, size_t max)
{
	fputc('"', out);
	for (size_t at = 0; at < max && text[at] && text[at] != '\n'; at++) {
		unsigned char c = text[at];
		if (c == '"' || c == '\\' || c < ' ' || c > '~')
			fprintf(out, "\\u%04x", c);
		else
			fputc(c, out);
	}
	fputc('"', out);
}

static bool is_frozen(int fd)
{
	char path[64], line[128];
	bool frozen = false;
	snprintf(path, sizeof path, "/proc/self/fdinfo/%d", fd);
	FILE *file = fopen(path, "r");
	while (file && fgets(line, sizeof line, file))
		frozen |= !strcmp(line, "frozen:\t1\n");
	if (file)
		fclose(file);
	return frozen;
}

// The bytes of the only value of a map that nobody can change any more.
static void write_constant(FILE *out, int fd, const struct bpf_map_info *info)
{
	bool single = info->type == BPF_MAP_TYPE_ARRAY && info->max_entries == 1;
	if (!single || !(info->map_flags & BPF_F_RDONLY_PROG) || !is_frozen(fd))
		return;
	uint32_t key = 0;
	uint8_t *value = calloc(1, info->value_size);
	union bpf_attr attr = {};
	attr.map_fd = fd;
	attr.key = (uintptr_t)&key;
	attr.value = (uintptr_t)value;
	if (value && bpf(BPF_MAP_LOOKUP_ELEM, &attr, sizeof attr) == 0) {
		fprintf(out, ",\"constant\":");
		write_hex(out, value, info->value_size);
	}
	free(value);
}

static void write_shape(FILE *out, const struct bpf_map_info *info)
{
	fprintf(out, "\"type\":%u,\"key_size\":%u,\"value_size\":%u,\"max_entries\":%u,\"flags\":%u,\"name\":", info->type,
		info->key_size, info->value_size, info->max_entries, info->map_flags);
	write_text(out, info->name, sizeof info->name);
}

static void write_map(FILE *out, int fd, int index)
{
	struct bpf_map_info info;
	if (!ask(fd, &info))
		return;
	fprintf(out, "{\"fd\":%d,\"index\":%d,\"id\":%u,", fd, index, info.id);
	write_shape(out, &info);
	write_constant(out, fd, &info);
	pthread_mutex_lock(&outers_lock);
	for (unsigned at = 0; at < outers_count; at++)
		if (outers[at].id == info.id) {
			fprintf(out, ",\"inner\":{");
			write_shape(out, &outers[at].inner);
			fprintf(out, "}");
		}
	pthread_mutex_unlock(&outers_lock);
	fprintf(out, "}");
}

static void write_maps(FILE *out, const struct bpf_insn *insns, unsigned count, const int *fd_array)
{
	int seen[MAPS_MAX][2];
	unsigned seen_count = 0;
	for (unsigned at = 0; at + 1 < count; at++) {
		if (insns[at].code != (BPF_LD | BPF_IMM | BPF_DW))
			continue;
		int kind = insns[at].src_reg, imm = insns[at].imm;
		bool by_fd = kind == BPF_PSEUDO_MAP_FD || kind == BPF_PSEUDO_MAP_VALUE;
		bool by_index = fd_array && (kind == BPF_PSEUDO_MAP_IDX || kind == BPF_PSEUDO_MAP_IDX_VALUE);
		at++;
		if (!by_fd && !by_index)
			continue;
		unsigned known = 0;
		while (known < seen_count && !(seen[known][0] == imm && seen[known][1] == by_index))
			known++;
		if (known < seen_count || seen_count == MAPS_MAX)
			continue;
		seen[seen_count][0] = imm;
		seen[seen_count][1] = by_index;
		if (seen_count++)
			fputc(',', out);
		write_map(out, by_fd ? imm : fd_array[imm], by_fd ? -1 : imm);
	}
}

static unsigned long number_after(const char *log, const char *word)
{
	const char *found = NULL;
	for (const char *at = log; (at = strstr(at, word)); at += strlen(word))
		found = at;
	return found ? strtoul(found + strlen(word), NULL, 10) : 0;
}

// The last line that is no statistics.
static const char *last_line(char *log)
{
	const char *last = "";
	for (char *rest = log, *line; (line = strsep(&rest, "\n"));)
		if (*line && strncmp(line, "processed ", 10) && strncmp(line, "verification time ", 18) &&
		    strncmp(line, "stack depth ", 12))
			last = line;
	return last;
}

// The same load by ourselves, with a log of our own.
static long load_again(const void *attr, unsigned size, char *log, unsigned level)
{
	union bpf_attr *copy = calloc(1, size > sizeof *copy ? size : sizeof *copy);
	if (!copy)
		return -ENOMEM;
	memcpy(copy, attr, size);
	copy->log_level = level;
	copy->log_size = LOG_BYTES;
	copy->log_buf = (uintptr_t)log;
	long fd = bpf(BPF_PROG_LOAD, copy, size);
	free(copy);
	return fd;
}

static void write_verdict(FILE *out, const void *attr, unsigned size)
{
	void *log = mmap(NULL, LOG_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (log == MAP_FAILED)
		return;
	long fd = load_again(attr, size, log, LOG_STATS);
	if (fd >= 0)
		raw(SYS_close, fd, 0, 0, 0, 0, 0);
	fprintf(out, ",\"errno\":%ld,\"usec\":%lu,\"processed\":%lu,\"states\":%lu", fd < 0 ? -fd : 0,
		number_after(log, "verification time "), number_after(log, "processed "), number_after(log, "total_states "));
	if (fd < 0) {
		load_again(attr, size, log, LOG_WAY);
		fprintf(out, ",\"why\":");
		write_text(out, last_line(log), SIZE_MAX);
	}
	munmap(log, LOG_BYTES);
}

static void record(const void *given, unsigned size)
{
	const char *directory = getenv("RING3_RECORD");
	if (!directory)
		return;
	union bpf_attr attr = {};
	memcpy(&attr, given, size < sizeof attr ? size : sizeof attr);
	char *line = NULL, path[4096];
	size_t length = 0;
	FILE *out = open_memstream(&line, &length);
	if (!out)
		return;
	const struct bpf_insn *insns = (const void *)(uintptr_t)attr.insns;
	fprintf(out, "{\"name\":");
	write_text(out, attr.prog_name, sizeof attr.prog_name);
	fprintf(out, ",\"prog_type\":%u,\"expected_attach_type\":%u,\"attach_btf_id\":%u,\"flags\":%u,\"license\":",
		attr.prog_type, attr.expected_attach_type, attr.attach_btf_id, attr.prog_flags);
	write_text(out, attr.license ? (const char *)(uintptr_t)attr.license : "", 128);
	fprintf(out, ",\"insns\":");
	write_hex(out, (const void *)insns, attr.insn_cnt * sizeof *insns);
	fprintf(out, ",\"maps\":[");
	write_maps(out, insns, attr.insn_cnt, (const int *)(uintptr_t)attr.fd_array);
	fprintf(out, "]");
	write_verdict(out, given, size);
	fprintf(out, "}\n");
	fclose(out);
	snprintf(path, sizeof path, "%s/%d.json", directory, getpid());
	int file = raw(SYS_openat, AT_FDCWD, (long)path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644, 0, 0);
	if (file >= 0) {
		raw(SYS_write, file, (long)line, length, 0, 0, 0);
		raw(SYS_close, file, 0, 0, 0, 0, 0);
	}
	free(line);
}

static long wrapped_bpf(int command, union bpf_attr *attr, unsigned size)
{
	// Before, as nobody can have closed its maps then.
	if (command == BPF_PROG_LOAD)
		record(attr, size);
	long result = bpf(command, attr, size);
	if (command == BPF_MAP_CREATE && result >= 0 &&
	    (attr->map_type == BPF_MAP_TYPE_ARRAY_OF_MAPS || attr->map_type == BPF_MAP_TYPE_HASH_OF_MAPS))
		remember_inner(result, attr->inner_map_fd);
	if ((command == BPF_LINK_CREATE || command == BPF_RAW_TRACEPOINT_OPEN) && result < 0)
		result = eventfd(0, EFD_CLOEXEC);
	return result;
}

static long wrapped_perf_event_open(long attr, long pid, long cpu, long group, long flags)
{
	long result = raw(SYS_perf_event_open, attr, pid, cpu, group, flags, 0);
	if (result >= 0)
		return result;
	struct perf_event_attr nothing = { .type = PERF_TYPE_SOFTWARE, .size = sizeof nothing };
	nothing.config = PERF_COUNT_SW_DUMMY;
	return raw(SYS_perf_event_open, (long)&nothing, pid, cpu, -1, PERF_FLAG_FD_CLOEXEC, 0);
}

long syscall(long number, ...)
{
	va_list list;
	va_start(list, number);
	long a = va_arg(list, long), b = va_arg(list, long), c = va_arg(list, long);
	long d = va_arg(list, long), e = va_arg(list, long), f = va_arg(list, long);
	va_end(list);
	long result;
	if (number == SYS_bpf)
		result = wrapped_bpf(a, (union bpf_attr *)b, c);
	else if (number == SYS_perf_event_open)
		result = wrapped_perf_event_open(a, b, c, d, e);
	else
		result = raw(number, a, b, c, d, e, f);
	if (result >= 0 || result < -4095)
		return result;
	errno = -result;
	return -1;
}

int ioctl(int fd, unsigned long request, ...)
{
	va_list list;
	va_start(list, request);
	long argument = va_arg(list, long);
	va_end(list);
	long result = raw(SYS_ioctl, fd, request, argument, 0, 0, 0);
	if (result < 0 && request == PERF_EVENT_IOC_SET_BPF)
		return 0;
	if (result >= 0)
		return result;
	errno = -result;
	return -1;
}

// Symbols that tools look for by name, of what this kernel may not have or not tell.
static const char symbols[] = "0 d avenrun\n0 d btrfs_file_operations\n0 d ext4_file_operations\n0 d jiffies\n"
			      "0 d vm_zone_stat\n0 t zpl_iter_read\n0 t zpl_iter_write\n";

static void write_symbols(int to)
{
	char bytes[1 << 16];
	int from = raw(SYS_openat, AT_FDCWD, (long)"/proc/kallsyms", O_RDONLY | O_CLOEXEC, 0, 0, 0);
	for (long count; from >= 0 && (count = raw(SYS_read, from, (long)bytes, sizeof bytes, 0, 0, 0)) > 0;)
		raw(SYS_write, to, (long)bytes, count, 0, 0, 0);
	raw(SYS_close, from, 0, 0, 0, 0, 0);
	// Behind them: what is there already comes first.
	for (const char *at = symbols; *at; at = strchr(at, '\n') + 1) {
		const char *rest = strchr(at, ' ');
		raw(SYS_write, to, (long)"ffffffff81000000", 16, 0, 0, 0);
		raw(SYS_write, to, (long)rest, strchr(rest, '\n') + 1 - rest, 0, 0, 0);
	}
}

// What the kernel says of kprobes, if it has none: their number among perf events, and what cannot be probed.
static const struct {
	const char *path, *text;
} files[] = {
	{ "/sys/bus/event_source/devices/kprobe/type", "65535\n" },
	{ "/sys/bus/event_source/devices/kprobe/format/retprobe", "config:0\n" },
	{ "/sys/kernel/debug/kprobes/blacklist", "" },
};

static bool is_there(const char *path)
{
	return raw(SYS_faccessat, AT_FDCWD, (long)path, F_OK, 0, 0, 0) == 0;
}

// A file that stands for another; -1 if the other is as it should be.
static int pretended(const char *path)
{
	bool is_symbols = !strcmp(path, "/proc/kallsyms");
	const char *text = NULL;
	for (unsigned at = 0; at < sizeof files / sizeof *files; at++)
		if (!strcmp(path, files[at].path) && !is_there(path))
			text = files[at].text;
	if (!text && !is_symbols)
		return -1;
	int file = memfd_create("pretended", MFD_CLOEXEC);
	if (text)
		raw(SYS_write, file, (long)text, strlen(text), 0, 0, 0);
	else
		write_symbols(file);
	raw(SYS_lseek, file, 0, SEEK_SET, 0, 0, 0);
	return file;
}

int open(const char *path, int flags, ...)
{
	va_list list;
	va_start(list, flags);
	int mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(list, int) : 0;
	va_end(list);
	long result = pretended(path);
	if (result < 0)
		result = raw(SYS_openat, AT_FDCWD, (long)path, flags, mode, 0, 0);
	if (result >= 0)
		return result;
	errno = -result;
	return -1;
}

int open64(const char *path, int flags, ...) __attribute__((alias("open")));

FILE *fopen(const char *path, const char *mode)
{
	int file = pretended(path);
	if (file >= 0)
		return fdopen(file, mode);
	FILE *(*libc)(const char *, const char *) = dlsym(RTLD_NEXT, "fopen");
	return libc(path, mode);
}

FILE *fopen64(const char *path, const char *mode) __attribute__((alias("fopen")));
