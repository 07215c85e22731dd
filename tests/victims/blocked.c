// SPDX-License-Identifier: MIT OR Apache-2.0
// Threads that are blocked below probed functions, each in another call, until they are let go on: then each call must give what it
// would give in a process that nobody ever touched.
//
//   blocked [late]       says "ready", makes its threads block on a line of input and says "blocked"; with "late" it blocks first.
//                        On the next line it lets them go on, and says which of them were wrong.
//   blocked vfork        is a parent whose child, which shares its memory, blocks
//   blocked hold PID     stops the threads of another process as a debugger does
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PROBED __attribute__((noinline, noclone, noipa))
#define LONG_MS 1000000
#define DEPTH 400

// Reads a byte by a call that is among the instructions which a probe of its entry displaces.
long in_displaced(int fd, char *byte, long size);
long in_displaced_end(int fd, char *byte, long size);
__asm__(".text\n"
	".p2align 4\n"
	".globl in_displaced\n.type in_displaced, @function\n"
	"in_displaced: xor %eax, %eax; syscall; ret\n"
	".size in_displaced, . - in_displaced\n"
	".p2align 4\n"
	".globl in_displaced_end\n.type in_displaced_end, @function\n"
	"in_displaced_end: push %rbx; xor %eax, %eax; syscall; pop %rbx; ret\n"
	".size in_displaced_end, . - in_displaced_end\n");

// Loads a word in the middle of what a probe of its entry replaces.
long in_fault(const long *word);
__asm__(".text\n"
	".p2align 4\n"
	".globl in_fault\n.type in_fault, @function\n"
	"in_fault: push %rbx; mov (%rdi), %rax; pop %rbx; ret\n"
	".size in_fault, . - in_fault\n");

static int pipes[16][2], listener, epoll, word;

PROBED long in_read(int fd)
{
	char byte = 0;
	long got = read(fd, &byte, 1);

	return got * 1000 + byte;
}

PROBED long in_recursion(int fd, int depth)
{
	long got = depth ? in_recursion(fd, depth - 1) : in_read(fd);

	__asm__ volatile("" : "+r"(got));
	return got;
}

PROBED long in_futex(void)
{
	struct timespec timeout = { LONG_MS / 1000, 0 };

	return syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 0, &timeout, NULL, 0);
}

PROBED long in_accept(void)
{
	int fd = accept(listener, NULL, NULL);

	return fd < 0 ? fd : close(fd);
}

PROBED long in_epoll(void)
{
	struct epoll_event event = { 0 };

	return epoll_wait(epoll, &event, 1, LONG_MS) * 1000 + event.data.fd;
}

PROBED long in_poll(int fd)
{
	struct pollfd wanted = { fd, POLLIN, 0 };

	return poll(&wanted, 1, LONG_MS) * 1000 + (wanted.revents == POLLIN);
}

PROBED long in_select(int fd)
{
	struct timeval timeout = { LONG_MS / 1000, 0 };
	fd_set set;

	FD_ZERO(&set);
	FD_SET(fd, &set);
	return select(fd + 1, &set, NULL, NULL, &timeout);
}

// A sleep that a signal ends once the threads are let go on. However often others interrupt it, what was slept and what is left are
// as long as it was to be: then 2.
PROBED long in_nanosleep(void)
{
	struct timespec whole = { LONG_MS / 1000, 0 }, left, from, to;

	clock_gettime(CLOCK_MONOTONIC, &from);
	if (!nanosleep(&whole, &left) || errno != EINTR || !word)
		return 0;
	clock_gettime(CLOCK_MONOTONIC, &to);
	long seconds = to.tv_sec - from.tv_sec + left.tv_sec;
	return labs(seconds - whole.tv_sec) <= 1 ? 2 : 1;
}

static void wake(int signal)
{
	(void)signal;
}

PROBED long in_sigwait(void)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGUSR2);
	return sigwaitinfo(&set, NULL);
}

static volatile long handled;

PROBED long in_handler(int fd)
{
	return handled = in_read(fd);
}

static void handle(int signal)
{
	(void)signal;
	in_handler(pipes[9][0]);
}

// A signal handler blocks above its frame, the handler in a function that is probed, too.
PROBED long below_handler(void)
{
	raise(SIGUSR1);
	return handled;
}

static long *page;

// The word is there once this has returned, and the load is made again.
static void handle_fault(int signal)
{
	(void)signal;
	if (in_read(pipes[12][0]) != 1000 + 'x' || mprotect(page, 4096, PROT_READ))
		_exit(9);
}

static long results[16];

static long run(int which)
{
	char byte = 0;

	switch (which) {
	case 0: return in_read(pipes[0][0]) == 1000 + 'x';
	case 1: return in_displaced(pipes[1][0], &byte, 1) == 1 && byte == 'x';
	case 2: return in_displaced_end(pipes[2][0], &byte, 1) == 1 && byte == 'x';
	case 3: return in_recursion(pipes[3][0], DEPTH) == 1000 + 'x';
	// (Who was stopped and waits again only after the word has changed is told so. That is so with any tracer, and without one.)
	case 4: return in_futex() == 0 || (errno == EAGAIN && word);
	case 5: return in_accept() == 0;
	case 6: return in_epoll() == 1000 + pipes[6][0];
	case 7: return in_poll(pipes[7][0]) == 1001;
	case 8: return in_select(pipes[8][0]) == 1;
	case 9: return below_handler() == 1000 + 'x';
	case 10: return in_nanosleep() == 2;
	case 11: return in_sigwait() == SIGUSR2;
	case 12: return in_fault(page) == 12;
	}
	return 0;
}
#define STATES 13

static void *body(void *which)
{
	results[(long)which] = run((long)which);
	return NULL;
}

// Waits until all threads but the first sleep.
static void await_blocked(int threads)
{
	for (int asleep = 0; asleep < threads;) {
		DIR *tasks = opendir("/proc/self/task");
		struct dirent *entry;

		asleep = 0;
		usleep(20000);
		while ((entry = readdir(tasks))) {
			char path[300], text[400] = "";
			int fd;

			if (entry->d_name[0] == '.' || atoi(entry->d_name) == getpid())
				continue;
			snprintf(path, sizeof(path), "/proc/self/task/%s/stat", entry->d_name);
			fd = open(path, O_RDONLY);
			if (fd >= 0 && read(fd, text, sizeof(text) - 1) > 0 && strstr(text, ") S "))
				asleep++;
			close(fd);
		}
		closedir(tasks);
	}
}

static void let_go(struct sockaddr_un *address, socklen_t bytes, pthread_t *threads)
{
	int client = socket(AF_UNIX, SOCK_STREAM, 0);

	for (int i = 0; i < STATES; i++)
		if (write(pipes[i][1], "x", 1) != 1)
			exit(2);
	word = 1;
	syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, 1000, NULL, NULL, 0);
	if (connect(client, (struct sockaddr *)address, bytes))
		exit(3);
	pthread_kill(threads[10], SIGALRM);
	pthread_kill(threads[11], SIGUSR2);
	for (int i = 0; i < STATES; i++)
		pthread_join(threads[i], NULL);
	close(client);
}

static void await_line(void)
{
	char line[64];

	if (!fgets(line, sizeof(line), stdin))
		exit(1);
}

static int all(int late)
{
	struct sockaddr_un address = { AF_UNIX, "" };
	struct sigaction action = { .sa_handler = handle };
	pthread_t threads[STATES];
	socklen_t bytes = sizeof(address);
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGUSR2);
	sigprocmask(SIG_BLOCK, &set, NULL);
	sigaction(SIGUSR1, &action, NULL);
	action.sa_handler = wake;
	sigaction(SIGALRM, &action, NULL);
	action.sa_handler = handle_fault;
	sigaction(SIGSEGV, &action, NULL);
	page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	*page = 12;
	mprotect(page, 4096, PROT_NONE);
	for (int i = 0; i < STATES; i++)
		if (pipe(pipes[i]))
			return 1;
	listener = socket(AF_UNIX, SOCK_STREAM, 0);
	if (bind(listener, (struct sockaddr *)&address, sizeof(sa_family_t)) || listen(listener, 4))
		return 1;
	getsockname(listener, (struct sockaddr *)&address, &bytes);
	epoll = epoll_create1(0);
	struct epoll_event event = { EPOLLIN, { .fd = pipes[6][0] } };
	epoll_ctl(epoll, EPOLL_CTL_ADD, pipes[6][0], &event);
	if (!late) {
		puts("ready");
		await_line();
	}
	for (long i = 0; i < STATES; i++)
		pthread_create(&threads[i], NULL, body, (void *)i);
	await_blocked(STATES);
	puts(late ? "ready" : "blocked");
	await_line();
	let_go(&address, bytes, threads);
	int wrong = 0;
	for (int i = 0; i < STATES; i++)
		if (!results[i])
			printf("%d ", i), wrong = 1;
	puts("wrong");
	return wrong;
}

static void await_line_or_end(void)
{
	char line[64];

	(void)!fgets(line, sizeof(line), stdin);
}

static int parent_of_vfork(void)
{
	char byte;

	if (pipe(pipes[0]))
		return 1;
	puts("ready");
	await_line();
	puts("blocked");
	pid_t child = vfork();
	if (child == 0) {
		in_displaced(STDIN_FILENO, &byte, 1);
		_exit(7);
	}
	int status = 0;
	int right = waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 7;
	puts(right ? "wrong" : "0 wrong");
	await_line_or_end();
	return !right;
}

static int hold(pid_t pid)
{
	int status, tries = 1000;

	// (While another tracer has it stopped, the kernel says EPERM.)
	while (ptrace(PTRACE_SEIZE, pid, 0, 0))
		if (errno != EPERM || !tries-- || usleep(1000))
			return 1;
	if (ptrace(PTRACE_INTERRUPT, pid, 0, 0) || waitpid(pid, &status, __WALL) != pid)
		return 1;
	puts("ready");
	await_line();
	return ptrace(PTRACE_DETACH, pid, 0, 0) != 0;
}

int main(int argc, char **argv)
{
	setvbuf(stdout, NULL, _IONBF, 0);
	setvbuf(stdin, NULL, _IONBF, 0);
	if (argc > 2 && !strcmp(argv[1], "hold"))
		return hold(atoi(argv[2]));
	if (argc > 1 && !strcmp(argv[1], "vfork"))
		return parent_of_vfork();
	return all(argc > 1 && !strcmp(argv[1], "late"));
}
