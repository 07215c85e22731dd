// SPDX-License-Identifier: MIT OR Apache-2.0
// Makes tracepoints of LTTng-UST fire in an unmodified program, without LTTng's session daemon:
//
//   gcc -O2 -shared -fPIC -I../../include ring3_lttng.c -o ring3_lttng.so
//   LD_PRELOAD=$PWD/ring3_lttng.so RING3_LTTNG='shop:*' ./prog
//   ring3 load -- bpftrace -p PID -e 'usdt:./ring3_lttng.so:lttng:event { printf("%s %d\n", str(arg1), arg2); }'
//
// RING3_LTTNG is a pattern of PROVIDER:NAME (fnmatch(3)), "*" if it is not set. Each event reports the static tracepoint lttng:event:
// provider, name, and the first four arguments as words. `File::lttng_tracepoints` tells their types from the program's file. What
// is passed in vector registers (float, double) is not among these words.
//
// It is what a probe of LTTng is: a function that liblttng-ust-tracepoint calls. The names and signatures come from the section
// lttng_ust_tracepoints_ptrs of the program and of each library that is loaded when the program begins.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <link.h>
#include <ring3/trace.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

// lttng/tracepoint-types.h, of 2.13.
struct tracepoint {
	uint32_t struct_size;
	const char *provider;
	const char *name;
	int state;
	void *probes;
	int *provider_ref;
	const char *signature;
};

typedef int registering(const char *provider, const char *name, void (*function)(void), void *data, const char *signature);

static registering *add_probe;
static const char *pattern;

static void fire(const struct tracepoint *tracepoint, long a, long b, long c, long d)
{
	RING3_TRACE(lttng, event, RING3_FIELD(provider, tracepoint->provider), RING3_FIELD(name, tracepoint->name), a, b, c, d);
}

static void add(struct tracepoint **start, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		char full[512];

		if (!start[i] || start[i]->struct_size < sizeof(struct tracepoint))
			continue;
		snprintf(full, sizeof(full), "%s:%s", start[i]->provider, start[i]->name);
		if (fnmatch(pattern, full, 0) == 0)
			add_probe(start[i]->provider, start[i]->name, (void (*)(void))fire, start[i], start[i]->signature);
	}
}

// The section headers are in the file only.
static void look(const char *path, ElfW(Addr) base)
{
	int file = open(path, O_RDONLY | O_CLOEXEC);
	const unsigned char *bytes;
	const Elf64_Ehdr *head;
	struct stat stat;

	if (file < 0)
		return;
	bytes = fstat(file, &stat) ? MAP_FAILED : mmap(NULL, stat.st_size, PROT_READ, MAP_PRIVATE, file, 0);
	close(file);
	if (bytes == MAP_FAILED)
		return;
	head = (const Elf64_Ehdr *)bytes;
	if ((size_t)stat.st_size >= sizeof(*head) && !memcmp(head->e_ident, ELFMAG, SELFMAG) && head->e_shstrndx < head->e_shnum &&
	    head->e_shoff + (uint64_t)head->e_shnum * sizeof(Elf64_Shdr) <= (uint64_t)stat.st_size) {
		const Elf64_Shdr *sections = (const Elf64_Shdr *)(bytes + head->e_shoff), *names = &sections[head->e_shstrndx];

		for (unsigned i = 0; i < head->e_shnum; i++)
			if (names->sh_offset + sections[i].sh_name < (uint64_t)stat.st_size &&
			    !strcmp((const char *)bytes + names->sh_offset + sections[i].sh_name, "lttng_ust_tracepoints_ptrs"))
				add((struct tracepoint **)(base + sections[i].sh_addr), sections[i].sh_size / sizeof(void *));
	}
	munmap((void *)bytes, stat.st_size);
}

static int each(struct dl_phdr_info *info, size_t bytes, void *unused)
{
	(void)bytes;
	(void)unused;
	look(info->dlpi_name[0] ? info->dlpi_name : "/proc/self/exe", info->dlpi_addr);
	return 0;
}

__attribute__((constructor)) static void start(void)
{
	void *library = dlopen("liblttng-ust-tracepoint.so.1", RTLD_NOW | RTLD_GLOBAL);

	add_probe = library ? (registering *)dlsym(library, "lttng_ust_tracepoint_provider_register") : NULL;
	if (!add_probe) {
		fprintf(stderr, "ring3_lttng: %s\n", dlerror());
		return;
	}
	pattern = getenv("RING3_LTTNG");
	pattern = pattern ? pattern : "*";
	dl_iterate_phdr(each, NULL);
}
