// SPDX-License-Identifier: MIT OR Apache-2.0
// What tools are compared on (`cargo xtask compat`): does the same each time, and ends.
#include <dirent.h>
#include <fcntl.h>
#include <netdb.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define KEEP __attribute__((noinline, noclone))
#define USED(x) __asm__ volatile("" : "+r"(x) : : "memory")

struct point {
	int x;
	short y;
	char name[16];
	struct point *next;
};

int global_counter = 41;

/* A probe as <sys/sdt.h> makes them: a nop, and a note of stapsdt with its two arguments. */
#define PROBE(NAME, FIRST, SECOND) \
	__asm__ volatile("990: nop\n" \
		".pushsection .note.stapsdt,\"?\",\"note\"\n" \
		".balign 4\n .4byte 992f-991f, 994f-993f, 3\n" \
		"991: .asciz \"stapsdt\"\n 992: .balign 4\n" \
		"993: .8byte 990b, _.stapsdt.base, 0\n" \
		".asciz \"compat\"\n .asciz \"" NAME "\"\n .asciz \"-4@%k0 8@%k1\"\n" \
		"994: .balign 4\n .popsection\n" \
		".ifndef _.stapsdt.base\n" \
		".pushsection .stapsdt.base,\"aG\",\"progbits\",.stapsdt.base,comdat\n" \
		".weak _.stapsdt.base\n .hidden _.stapsdt.base\n _.stapsdt.base: .space 1\n" \
		".size _.stapsdt.base, 1\n .popsection\n .endif\n" : : "r"(FIRST), "r"(SECOND))

KEEP int add(int a, int b) { USED(a); return a + b; }
KEEP long wide(long a, long b, long c, long d, long e, long f) { USED(a); return a + b + c + d + e + f; }
KEEP size_t greet(const char *name) { USED(name); return strlen(name); }
KEEP int move(struct point *p) { USED(p); return p->x + p->y; }
KEEP int sum(const int *values, int n) { int s = 0; for (int i = 0; i < n; i++) s += values[i]; USED(s); return s; }
KEEP int fails(int n) { USED(n); return -n; }
KEEP int inner(int n) { USED(n); return n + 1; }
KEEP int outer(int n) { int r = inner(n) + inner(n + 1); USED(r); return r; }
KEEP int recursive(int n) { USED(n); return n <= 0 ? 0 : 1 + recursive(n - 1); }
KEEP uint64_t big(uint64_t n) { USED(n); return n << 32; }
KEEP void tick(int n, const char *text) { long second = (long)text; USED(n); __asm__ volatile("" : : "r"(second)); PROBE("tick", n, (long)text); }

static void *thread(void *unused)
{
	(void)unused;
	for (int i = 0; i < 10; i++)
		inner(i);
	return NULL;
}

static void calls(void)
{
	struct stat st;
	char buffer[64];
	pid_t child;
	int fd;

	for (int i = 0; i < 5; i++) {
		fd = open("/etc/hostname", O_RDONLY);
		if (fd >= 0) {
			if (read(fd, buffer, sizeof(buffer)) < 0)
				abort();
			close(fd);
		}
		fd = open("/no/such/file", O_RDONLY);
		stat("/etc/passwd", &st);
		stat("/no/such/stat", &st);
	}
	kill(getpid(), 0);
	mkdir("/tmp/compat-directory", 0700);
	rmdir("/tmp/compat-directory");
	unlink("/tmp/compat-no-such-file");
	sync();
	child = fork();
	if (child == 0)
		_exit(3);
	waitpid(child, NULL, 0);
	child = fork();
	if (child == 0) {
		execl("/bin/true", "true", "first", "second", NULL);
		_exit(1);
	}
	waitpid(child, NULL, 0);
	nanosleep(&(struct timespec){ 0, 2000000 }, NULL);
}

int main(void)
{
	struct point second = { 7, 8, "second", NULL }, first = { 3, 4, "first", &second };
	const int values[] = { 1, 2, 3, 4, 5 };
	const char *const names[] = { "anna", "bert", "anna", "carl", "anna" };
	long total = 0;
	pthread_t threads[2];

	for (int i = 0; i < 100; i++)
		total += add(i, 2 * i);
	for (int i = 0; i < 10; i++)
		total += wide(i, 2, 3, 4, 5, 6) + move(i % 2 ? &first : &second) + fails(i % 3) + outer(i) + (long)(big(i) >> 40);
	for (int i = 0; i < 5; i++) {
		total += greet(names[i]) + sum(values, i);
		tick(i, names[i]);
	}
	total += recursive(20);
	global_counter++;
	for (int i = 0; i < 2; i++)
		pthread_create(&threads[i], NULL, thread, NULL);
	for (int i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
	for (int i = 0; i < 20; i++)
		free(malloc(100 + i));
	calls();
	printf("%ld\n", total);
	return 0;
}
