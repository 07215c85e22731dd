// Calls `touch` with frames that lead anywhere, while another thread loads and unloads a library and calls it through that.
//
//   wandering LIBRARY CALLS
//
// Prints "ready", waits for a line, and prints how often `touch` was called.
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

// Probed behind its first instructions, where the caller's frame is as rbp says: by frame pointers (no table), by a table whose CFA is
// rbp and a huge number, and by one whose CFA is in memory.
#define WANDERER(name, begin, row, end)                                                     \
	asm(".text\n.globl " #name "\n.type " #name ", @function\n" #name ":\n" begin             \
	    "	push %rbp\n	push %rbx\n	mov %rdi, %rbp\n	mov %rsi, %rbx\n	call " #name "_at\n"      \
	    "	pop %rbx\n	pop %rbp\n	ret\n" end ".size " #name ", . - " #name "\n"              \
	    ".globl " #name "_at\n.type " #name "_at, @function\n" #name "_at:\n" begin row          \
	    "	nopl 0(%rax, %rax, 1)\n	ret\n" end ".size " #name "_at, . - " #name "_at\n");          \
	void name(uint64_t rbp, uint64_t rbx)

WANDERER(bare, "", "", "");
WANDERER(based, "	.cfi_startproc\n", "	.cfi_def_cfa %rbp, 0x7ffffff0\n	.cfi_offset %rbp, -16\n", "	.cfi_endproc\n");
WANDERER(near, "	.cfi_startproc\n", "	.cfi_def_cfa %rbp, 16\n	.cfi_offset %rbp, -16\n", "	.cfi_endproc\n");
WANDERER(kept, "	.cfi_startproc\n", "	.cfi_def_cfa %rbx, 16\n	.cfi_offset %rbx, -16\n", "	.cfi_endproc\n");
// DW_CFA_def_cfa_expression: breg6 (rbp) 0; deref; plus_uconst 8
WANDERER(loaded, "	.cfi_startproc\n", "	.cfi_escape 0x0f, 5, 0x76, 0, 0x06, 0x23, 8\n", "	.cfi_endproc\n");

static void (*const ways[])(uint64_t, uint64_t) = { bare, based, near, kept, loaded };
static unsigned long called;
static volatile int ends;

__attribute__((noinline)) void touch(void)
{
	asm volatile("nopl 0(%rax, %rax, 1)");
	__atomic_fetch_add(&called, 1, __ATOMIC_RELAXED);
}

static void tell(const char *name)
{
	(void)name;
	touch();
	asm volatile("" ::: "memory");
}

static void *loads(void *path)
{
	while (!ends) {
		void *handle = dlopen(path, RTLD_LAZY);
		void (*call)(void (*)(const char *)) = handle ? (void (*)(void (*)(const char *)))dlsym(handle, "stacked") : 0;

		if (call)
			call(tell);
		if (handle)
			dlclose(handle);
	}
	return 0;
}

int main(int argc, char **argv)
{
	// A page of words, and none behind it.
	uint64_t *page = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	uint64_t random = 88172645463325252ull;
	long calls = argc > 2 ? atol(argv[2]) : 0;
	pthread_t thread;
	char line[16];

	munmap(page + 512, 4096);
	pthread_create(&thread, 0, loads, argv[1]);
	printf("ready\n");
	fflush(stdout);
	if (!fgets(line, sizeof(line), stdin))
		return 1;
	for (long call = 0; call < calls; call++) {
		uint64_t places[] = { 0, 8, -1ull, 1ull << 63, 0x7fffffffeff8, 0x7ffffffff000, (uint64_t)page, (uint64_t)(page + 511),
				      (uint64_t)page - 0x7ffffff0, (uint64_t)&page, (uint64_t)main, 0 };

		random ^= random << 13, random ^= random >> 7, random ^= random << 17;
		places[11] = random;
		// Cycles of one and more frames, and ways out.
		for (int at = 0; at < 512; at++)
			page[at] = at % 3 ? (uint64_t)(page + random % 511) : places[(random >> at % 48) % 12];
		page[0] = (uint64_t)page;
		for (unsigned way = 0; way < sizeof(ways) / sizeof(*ways); way++)
			ways[way](places[call % 12], places[random % 12]), __atomic_fetch_add(&called, 1, __ATOMIC_RELAXED);
	}
	ends = 1;
	pthread_join(thread, 0);
	printf("%lu\n", called);
	fflush(stdout);
	while (fgets(line, sizeof(line), stdin))
		;
	return 0;
}
