// A loader that makes ordinary calls without end, in THREADS threads and in children, and says at each line of input how it fares.
// One thread waits for a ring buffer and a pipe all the time. A call that fails ends it.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/bpf.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/select.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static atomic_int stop;
static atomic_ulong rounds;
static int ring, wake[2];

static void check(int good, const char *what)
{
	if (good)
		return;
	printf("%s: %s\n", what, strerrorname_np(errno));
	fflush(stdout);
	_exit(1);
}

static void ordinary(void)
{
	struct stat about;
	struct pollfd nothing = { .fd = wake[1], .events = POLLOUT };
	struct timeval at_once = {};
	fd_set set;
	int file = open("/dev/null", O_RDONLY);

	check(file >= 0, "open");
	check(stat("/", &about) == 0, "stat");
	check(access("/dev/null", R_OK) == 0, "access");
	check(poll(&nothing, 1, 0) == 1, "poll");
	FD_ZERO(&set);
	FD_SET(file, &set);
	check(select(file + 1, &set, NULL, NULL, &at_once) == 1, "select");
	check(mkdir("/dev/null/nowhere", 0700) == -1 && errno == ENOTDIR, "mkdir");
	close(file);
	rounds++;
}

static void *body(void *unused)
{
	while (!stop)
		ordinary();
	return unused;
}

static void *wait_for_ring(void *unused)
{
	struct pollfd both[] = { { .fd = ring, .events = POLLIN }, { .fd = wake[0], .events = POLLIN } };
	int found = poll(both, 2, -1);

	// A number of its own if the server had to answer and could not.
	check(found > 0 || (found == -1 && errno == EINTR), "poll of a ring buffer");
	return unused;
}

static int bpf(int command, union bpf_attr *attr)
{
	return syscall(SYS_bpf, command, attr, sizeof *attr);
}

static int create(void)
{
	union bpf_attr attr = { .map_type = BPF_MAP_TYPE_RINGBUF, .max_entries = 4096 };
	return bpf(BPF_MAP_CREATE, &attr);
}

static void say(void)
{
	unsigned long before = rounds;
	int status, map = create();

	printf("bpf: %s\n", map < 0 ? strerrorname_np(errno) : "ok");
	if (map >= 0)
		close(map);
	while (rounds < before + 100)
		usleep(100);
	if (fork() == 0) {
		ordinary();
		execlp("sh", "sh", "-c", "test -e /dev/null && cat /proc/self/status | grep -q Name", NULL);
		_exit(1);
	}
	check(wait(&status) > 0 && status == 0, "a child");
	puts("well");
	fflush(stdout);
}

int main(int argc, char **argv)
{
	int threads = argc > 1 ? atoi(argv[1]) : 2;
	pthread_t handles[threads + 1];
	char line[16];

	ring = create();
	check(ring >= 0 && pipe(wake) == 0, "a ring buffer");
	for (int i = 0; i < threads; i++)
		pthread_create(&handles[i], NULL, body, NULL);
	pthread_create(&handles[threads], NULL, wait_for_ring, NULL);
	puts("ready");
	fflush(stdout);
	while (fgets(line, sizeof line, stdin))
		say();
	stop = 1;
	check(write(wake[1], "x", 1) == 1, "write");
	for (int i = 0; i <= threads; i++)
		pthread_join(handles[i], NULL);
	puts("done");
	return 0;
}
