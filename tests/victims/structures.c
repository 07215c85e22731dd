// SPDX-License-Identifier: MIT OR Apache-2.0
// Makes system calls whose arguments lead to structures. With another argument than "x" it does nothing.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void handle(int signal)
{
	(void)signal;
}

static void files(void)
{
	struct stat stat;
	const struct timespec times[2] = { { 1, 2 }, { 3, 4 } };

	syscall(SYS_stat, "/etc/passwd", &stat);
	syscall(SYS_lstat, "/proc/self/exe", &stat);
	syscall(SYS_stat, "/dev/null", &stat);
	syscall(SYS_newfstatat, AT_FDCWD, "/tmp", &stat, AT_SYMLINK_NOFOLLOW);
	syscall(SYS_fstat, 99, NULL);
	syscall(SYS_utimensat, 99, NULL, times, 0);
	syscall(SYS_utimensat, 99, NULL, NULL, 0);
}

static void sockets(void)
{
	struct sockaddr_in in = { .sin_family = AF_INET, .sin_port = htons(9), .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	struct sockaddr_un un = { .sun_family = AF_UNIX, .sun_path = "/no/such/socket" };
	struct sockaddr_storage name;
	socklen_t length = sizeof name;
	int one = socket(AF_INET, SOCK_DGRAM, 0), other = socket(AF_UNIX, SOCK_STREAM, 0);

	connect(one, (struct sockaddr *)&in, sizeof in);
	getpeername(one, (struct sockaddr *)&name, &length);
	connect(other, (struct sockaddr *)&un, sizeof un);
	bind(other, (struct sockaddr *)&un, sizeof un);
}

static void others(void)
{
	int both[2];
	const struct timespec little = { 0, 1000 };
	struct sigaction action = { .sa_handler = SIG_IGN, .sa_flags = SA_RESTART };
	struct rlimit64 limit;
	sigset_t set;

	syscall(SYS_pipe2, both, O_CLOEXEC);
	syscall(SYS_nanosleep, &little, NULL);
	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	sigaddset(&set, SIGCHLD);
	sigprocmask(SIG_BLOCK, &set, NULL);
	sigfillset(&set);
	sigdelset(&set, SIGTERM);
	sigprocmask(SIG_SETMASK, &set, NULL);
	sigaction(SIGUSR2, &action, NULL);
	action.sa_handler = handle;
	sigaction(SIGUSR2, &action, NULL);
	syscall(SYS_prlimit64, 0, RLIMIT_CORE, NULL, &limit);
	syscall(SYS_prlimit64, 0, RLIMIT_CORE, &limit, NULL);
	if (fork() == 0)
		_exit(3);
	wait(both);
	wait(both);
}

static void lists(void)
{
	int both[2] = { 0, 0 };
	struct iovec parts[2] = { { "ab", 2 }, { "c", 1 } };
	struct pollfd polled = { .events = POLLIN };
	struct epoll_event event = { .events = EPOLLIN | EPOLLET, .data.u64 = 7 };
	int epoll = epoll_create1(0);

	socketpair(AF_UNIX, SOCK_STREAM, 0, both);
	writev(both[0], parts, 2);
	polled.fd = both[1];
	syscall(SYS_poll, &polled, 1, 1000);
	epoll_ctl(epoll, EPOLL_CTL_ADD, both[1], &event);
	syscall(SYS_epoll_wait, epoll, &event, 1, 1000);
}

int main(int count, char **arguments)
{
	char *no[] = { "one", "a text that is longer than strace shows it", "", NULL };

	if (count < 2 || strcmp(arguments[1], "x"))
		return 0;
	files();
	sockets();
	others();
	lists();
	execve("/no/such/program", no, NULL);
	execve(arguments[0], (char *[]){ arguments[0], "y", NULL }, NULL);
	return 1;
}
