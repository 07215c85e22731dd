// A target that misuses what ring3 has mapped into it. ARGUMENTS: what it does, the offsets of the requests and of the
// CPU slots in the realm block, and a directory of files for `files` and `fifos`, or the offset of the guard in a thread's block for `guard`. It says `ready`, then `begun`, and goes on until it is killed.
#define _GNU_SOURCE
#include <asm/prctl.h>
#include <dirent.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

// As `ring3_layout::realm` has them.
struct doorbell {
	_Atomic uint32_t sequence, sleeping;
	_Atomic uint64_t bits[16];
};

struct slot {
	_Alignas(64) _Atomic uint32_t owner;
	_Atomic uint32_t outlasted, waiting;
};

struct request {
	_Alignas(64) _Atomic uint32_t state;
	_Atomic uint32_t kind, pid, tid;
	_Atomic uint64_t nonce, base, argument;
};

enum { FREE, FILLING, PENDING, DONE, ABANDONED, UNATTENDED };
enum { MAPPING_ADDED = 1, FORKED, EXEC, SUD_OFF, FILTER, TRAPS_OFF, OVER_BUDGET, FAULT };
enum { REQUESTS = 256, SLOTS = 512 };

static struct doorbell *doorbell;
static struct request *requests;
static struct slot *slots;
static uint64_t nonce, base;
static volatile int lying_tid;

__attribute__((noinline, noclone)) unsigned long work(unsigned long x)
{
	__asm__ volatile("" : "+r"(x));
	return x + 1;
}

static void *mapping(const char *name)
{
	FILE *maps = fopen("/proc/self/maps", "r");
	unsigned long start = 0;
	char line[512];

	while (maps && fgets(line, sizeof(line), maps))
		if (strstr(line, name) && sscanf(line, "%lx", &start) == 1)
			break;
	fclose(maps);
	if (!start)
		exit(3);
	return (void *)start;
}

static void ring(void)
{
	atomic_fetch_or(&doorbell->bits[0], 1);
	atomic_fetch_add(&doorbell->sequence, 1);
	syscall(SYS_futex, &doorbell->sequence, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

static void ask(struct request *request, int kind, int tid, int state)
{
	request->kind = kind;
	request->pid = getpid();
	request->tid = tid;
	request->nonce = nonce;
	request->base = base;
	request->argument = 0x1000;
	atomic_store(&request->state, state);
}

// Announces programs and executes none: waits for each answer, as an agent does.
static void announce(int others)
{
	for (;;) {
		struct request *request = &requests[others ? rand() % REQUESTS : 0];

		ask(request, EXEC, lying_tid, PENDING);
		ring();
		for (int i = 0; i < 1000 && request->state == PENDING; i++)
			usleep(1000);
		atomic_store(&request->state, FREE);
	}
}

static void flood(void)
{
	for (unsigned i = 0;; i++) {
		ask(&requests[i % REQUESTS], 1 + rand() % FAULT, lying_tid, i % 2 ? PENDING : UNATTENDED);
		if (i % 64 == 0)
			ring();
	}
}

/* As `ring3_layout::fault` has it. */
struct fault {
	uint64_t magic, registers[8], guard, address;
	uint32_t link_id, prog_id, signal, interrupted;
	uint64_t answered;
};

/* Says that a program has faulted at random places of ring3's code, with random registers, and waits for each answer. */
static void fault_forever(void)
{
	char *text = mapping("/memfd:ring3-text");
	uint64_t words[512];

	for (unsigned i = 0;; i++) {
		struct request *request = &requests[i % REQUESTS];
		struct fault fault = { .guard = ~0ull, .link_id = 1 + rand() % 4, .prog_id = 1 + rand() % 8, .signal = 11 };
		struct timespec moment = { .tv_nsec = 10000000 };

		for (int at = 0; at < 512; at++)
			words[at] = rand() % 2 ? base + rand() % 0x23000 : (uint64_t)&words[rand() % 512];
		for (int at = 0; at < 8; at++)
			fault.registers[at] = (uint64_t)&words[rand() % 512];
		fault.registers[0] = rand() % 2 ? base + 0x3500 + rand() % 0x1f000 : (uint64_t)text + 0x21000 + rand() % 4096;
		fault.magic = 0x7469756c66613372 ^ (uint64_t)&fault;
		ask(request, FAULT, gettid(), FILLING);
		request->argument = (uint64_t)&fault;
		atomic_store(&request->state, PENDING);
		ring();
		for (int round = 0; round < 5 && request->state == PENDING; round++)
			syscall(SYS_futex, &request->state, FUTEX_WAIT, PENDING, &moment, NULL, 0);
		atomic_store(&request->state, FREE);
	}
}

static void hold(void)
{
	for (;;) {
		for (int i = 0; i < SLOTS; i++) {
			slots[i].owner = lying_tid;
			slots[i].outlasted = 0;
		}
		for (int i = 0; i < REQUESTS; i++)
			requests[i].state = FILLING;
	}
}

static void map(const char *path)
{
	int fd = open(path, O_RDONLY);

	for (;;) {
		void *code = mmap(NULL, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE, fd, 0);
		munmap(code, 4096);
	}
}

// Maps the code of all files in a directory, of which each is another one after the next round.
static void map_all(const char *directory)
{
	struct dirent *entry;
	char path[4096];
	DIR *files;

	for (;;) {
		for (files = opendir(directory); files && (entry = readdir(files));) {
			snprintf(path, sizeof(path), "%s/%s", directory, entry->d_name);
			int fd = open(path, O_RDWR);
			if (fd < 0)
				continue;
			mmap(NULL, 1 << 20, PROT_READ | PROT_EXEC, MAP_PRIVATE, fd, 0);
			// Truncated while the server may be reading it.
			if (rand() % 4 == 0)
				ftruncate(fd, rand() % (1 << 24));
			futimens(fd, NULL);
			close(fd);
		}
		closedir(files);
	}
}

// Maps the code of a file whose path leads to a FIFO when somebody looks, which nobody writes.
static void map_replaced(const char *directory)
{
	int fd;

	if (chdir(directory) || mkfifo("fifo", 0666) || (fd = open("code", O_RDONLY)) < 0)
		exit(1);
	for (;;) {
		mmap(NULL, 8192, PROT_READ | PROT_EXEC, MAP_PRIVATE, fd, 0);
		rename("fifo", "code");
		usleep(1000);
	}
}

static void fork_many(int count)
{
	for (int i = 0; i < count; i++)
		if (fork() == 0) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			work(i);
			for (;;)
				pause();
		}
}

// A child with the same memory that neither executes a program nor ends: its creator cannot be stopped.
static void hang(void)
{
	if (vfork() == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		for (;;)
			pause();
	}
}

// A child traces it and holds all that it traces: nobody else can.
static void be_traced(void)
{
	pid_t tid = gettid(), child = fork();

	prctl(PR_SET_PTRACER, child);
	if (child == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		while (ptrace(PTRACE_SEIZE, tid, 0, 0) != 0)
			usleep(1000);
		ptrace(PTRACE_INTERRUPT, tid, 0, 0);
		for (;;)
			pause();
	}
}

// Makes and ends children as fast as it can.
static void fork_forever(void)
{
	for (;;) {
		pid_t child = fork();

		if (child == 0) {
			work(1);
			_exit(0);
		}
		waitpid(child, NULL, 0);
	}
}

/* What looks like the frame of a signal that came in code of ring3's: a thread is inside for ever. */
static void forge_frame(void)
{
	volatile uint64_t frame[32] = { 0 };

	/* `rip`, `eflags`, and `cs` with its neighbours (struct sigcontext); no alternate stack. */
	frame[24] = (uint64_t)mapping("/memfd:ring3-text");
	frame[25] = 0x202;
	frame[26] = 0x002b000000000033;
	for (;;)
		pause();
}

/* This thread says that it is inside a program. */
static void set_guard(long offset)
{
	unsigned long block = 0;

	while (!block) {
		work(1);
		syscall(SYS_arch_prctl, ARCH_GET_GS, &block);
	}
	*(volatile uint64_t *)(block + offset) = (uint64_t)&block;
	for (;;)
		pause();
}

static void *liar(void *unused)
{
	lying_tid = gettid();
	for (;;)
		work(1);
	return unused;
}

int main(int argc, char **argv)
{
	const char *what = argv[1];
	pthread_t thread;

	if (argc < 4)
		return 2;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	setvbuf(stdout, NULL, _IONBF, 0);
	for (int i = 0; i < 1000; i++)
		work(i);
	puts("ready");
	doorbell = mapping("/memfd:ring3-realm");
	requests = (void *)((char *)doorbell + atol(argv[2]));
	slots = (void *)((char *)doorbell + atol(argv[3]));
	nonce = ((uint64_t *)mapping("/memfd:ring3-control"))[2];
	base = ((uint64_t *)mapping("/memfd:ring3-control"))[3];
	if (!strcmp(what, "fork"))
		fork_many(1000);
	pthread_create(&thread, NULL, liar, NULL);
	while (!lying_tid)
		;
	puts("begun");
	if (!strcmp(what, "announce"))
		announce(0);
	if (!strcmp(what, "flood"))
		flood();
	if (!strcmp(what, "faults"))
		fault_forever();
	if (!strcmp(what, "hold"))
		hold();
	if (!strcmp(what, "map"))
		map(argv[0]);
	if (!strcmp(what, "files"))
		map_all(argv[4]);
	if (!strcmp(what, "fifos"))
		map_replaced(argv[4]);
	if (!strcmp(what, "stop"))
		raise(SIGSTOP);
	if (!strcmp(what, "trace"))
		be_traced();
	if (!strcmp(what, "forks"))
		fork_forever();
	if (!strcmp(what, "hang"))
		hang();
	if (!strcmp(what, "guard"))
		set_guard(atol(argv[4]));
	if (!strcmp(what, "inside"))
		forge_frame();
	if (!strcmp(what, "ring"))
		for (;;)
			ring();
	for (;;)
		pause();
}
