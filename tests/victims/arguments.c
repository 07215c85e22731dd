// SPDX-License-Identifier: MIT OR Apache-2.0
// Makes system calls of which one argument says what another one is, and such as take flags. With another argument than "x" it does
// nothing.
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/futex.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

static void files(void)
{
	char bytes[64];
	struct statx statx;
	int fd = syscall(SYS_openat, AT_FDCWD, "/etc", O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);

	syscall(SYS_statx, AT_FDCWD, "/dev", AT_SYMLINK_NOFOLLOW, STATX_MODE | STATX_SIZE, &statx);
	syscall(SYS_statx, AT_FDCWD, "/no/such/file", AT_STATX_DONT_SYNC, STATX_ALL, &statx);
	syscall(SYS_fcntl, fd, F_GETFD);
	syscall(SYS_fcntl, fd, F_SETFD, 0);
	syscall(SYS_fcntl, fd, F_GETFD);
	syscall(SYS_fcntl, fd, F_DUPFD_CLOEXEC, 20);
	syscall(SYS_fcntl, fd, F_SETFL, O_NONBLOCK);
	syscall(SYS_fcntl, 99, F_GETFL);
	syscall(SYS_ioctl, fd, TCGETS, bytes);
	syscall(SYS_ioctl, fd, TIOCGWINSZ, bytes);
	syscall(SYS_ioctl, fd, 0x12345678, 3);
	syscall(SYS_ioctl, fd, FIOCLEX);
	syscall(SYS_fadvise64, fd, 0, 0, POSIX_FADV_SEQUENTIAL);
	syscall(SYS_getxattr, "/etc", "user.ring3", NULL, 0);
	syscall(SYS_getxattr, "/etc", "user.ring3", bytes, sizeof bytes);
	syscall(SYS_readlink, "/etc", bytes, sizeof bytes);
	syscall(SYS_read, 99, bytes, sizeof bytes);
	syscall(SYS_write, 99, "\0008\0009\0007", 6);
	syscall(SYS_umask, 0);
	syscall(SYS_umask, 022);
	syscall(SYS_mkdir, "/no/such/directory", 0);
	syscall(SYS_unlinkat, AT_FDCWD, "/no/such/directory", AT_REMOVEDIR);
	syscall(SYS_memfd_create, "a", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	syscall(SYS_close_range, 21, 21, 0);
}

static void processes(void)
{
	struct itimerval interval = { { 0, 0 }, { 100, 0 } };
	struct utsname names;
	struct sched_param priority;
	unsigned char cpus[128];
	siginfo_t info = { 0 };
	stack_t stack;
	int child;

	syscall(SYS_rt_sigaction, 40, NULL, NULL, 8);
	syscall(SYS_sigaltstack, NULL, &stack);
	syscall(SYS_setitimer, ITIMER_REAL, &interval, NULL);
	syscall(SYS_setitimer, ITIMER_REAL, NULL, NULL);
	syscall(SYS_uname, &names);
	syscall(SYS_sched_getparam, 0, &priority);
	syscall(SYS_sched_getaffinity, 0, sizeof cpus, cpus);
	syscall(SYS_prctl, PR_CAPBSET_READ, 3);
	syscall(SYS_prctl, PR_SET_PDEATHSIG, SIGTERM);
	syscall(SYS_prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
	child = fork();
	if (!child)
		_exit(7);
	waitid(P_ALL, 0, &info, WEXITED);
}

static void waits(void)
{
	const struct timespec little = { 0, 1000 };
	struct itimerspec interval = { { 0, 0 }, { 1, 0 } };
	struct pollfd ready = { 0, POLLIN, 0 };
	int word = 1, both[2], timer;

	syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
	syscall(SYS_futex, &word, FUTEX_WAIT, 0, NULL, NULL, 0);
	syscall(SYS_futex, &word, FUTEX_WAIT_BITSET_PRIVATE | FUTEX_CLOCK_REALTIME, 1, &little, NULL, FUTEX_BITSET_MATCH_ANY);
	syscall(SYS_pipe2, both, O_NONBLOCK | O_CLOEXEC);
	ready.fd = both[0];
	syscall(SYS_poll, &ready, 1, 1);
	syscall(SYS_write, both[1], "a", 1);
	syscall(SYS_poll, &ready, 1, 1000);
	syscall(SYS_epoll_create1, EPOLL_CLOEXEC);
	syscall(SYS_eventfd2, 0, EFD_SEMAPHORE | EFD_NONBLOCK);
	syscall(SYS_inotify_init1, IN_CLOEXEC);
	timer = syscall(SYS_timerfd_create, CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
	syscall(SYS_timerfd_settime, timer, TFD_TIMER_ABSTIME, &interval, NULL);
}

static void sockets(void)
{
	int one = socket(AF_INET, SOCK_STREAM, IPPROTO_TCP), on = 1;
	socklen_t bytes = sizeof on;

	socket(AF_NETLINK, SOCK_RAW, 0);
	socket(AF_UNIX, SOCK_STREAM, 0);
	setsockopt(one, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
	setsockopt(one, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
	getsockopt(one, SOL_SOCKET, SO_TYPE, &on, &bytes);
	sendto(one, "x", 1, MSG_NOSIGNAL, NULL, 0);
	recvfrom(one, &on, 1, MSG_DONTWAIT, NULL, NULL);
}

static void memory(void)
{
	void *page = mmap(NULL, 8192, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 4096);

	syscall(SYS_mremap, page, 8192, 4096, 0);
	syscall(SYS_msync, page, 4096, MS_SYNC);
}

int main(int argc, char **argv)
{
	if (argc < 2 || argv[1][0] != 'x')
		return 0;
	files();
	processes();
	waits();
	sockets();
	memory();
	return 0;
}
