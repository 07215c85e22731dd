// SPDX-License-Identifier: MIT OR Apache-2.0
// events KIND: says its process, and makes calls of one kind for tools to show, some of which fail; the last one names
// "/nowhere/last" where it has a path. On one CPU, so that tools show them in order.
#include "check.h"
#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <sys/wait.h>

static void opens(void)
{
	// (What whoever ran the tests has left open.)
	for (int file = 3; file < 64; file++)
		close(file);
	EQUAL(open("/dev/null", O_RDONLY), 3);
	EQUAL(RAW(SYS_open, "/dev/zero", O_RDWR), 4);
	EQUAL(openat(AT_FDCWD, "/nowhere/missing", O_RDONLY), -1);
	EQUAL(openat(-5, "relative", O_RDONLY), -1);
	EQUAL(RAW(SYS_openat, AT_FDCWD, "/", O_WRONLY), -EISDIR);
	EQUAL(RAW(SYS_openat, AT_FDCWD, 1, O_RDONLY), -EFAULT);
	EQUAL(open("/proc/self/status", O_RDONLY), 5);
	// (Longer than any tool shows.)
	char path[4000];
	memset(path, 'x', sizeof(path));
	path[0] = '/';
	path[sizeof(path) - 1] = 0;
	EQUAL(open(path, O_RDONLY), -1);
	EQUAL(open("/nowhere/last", O_RDONLY), -1);
}

static void stats(void)
{
	struct stat stat;
	struct statfs file_system;
	// `struct statx`, which not every C library has.
	unsigned long extended[32];

	for (int i = 0; i < 2; i++) {
		const char *path = i ? "/nowhere/missing" : "/dev/null";
		long result = i ? -ENOENT : 0;

		EQUAL(RAW(SYS_stat, path, &stat), result);
		EQUAL(RAW(SYS_lstat, path, &stat), result);
		EQUAL(RAW(SYS_newfstatat, AT_FDCWD, path, &stat, 0), result);
		EQUAL(RAW(SYS_statx, AT_FDCWD, path, 0, 0xfff, &extended), result);
		EQUAL(RAW(SYS_statfs, path, &file_system), result);
		EQUAL(lstat(path, &stat) != 0, i);
	}
	EQUAL(statfs("/nowhere/last", &file_system), -1);
}

static void kills(void)
{
	pid_t self = getpid();

	signal(SIGUSR1, SIG_IGN);
	EQUAL(kill(self, 0), 0);
	EQUAL(kill(self, SIGUSR1), 0);
	EQUAL(RAW(SYS_kill, self, SIGWINCH), 0);
	EQUAL(RAW(SYS_tkill, self, SIGUSR1), 0);
	EQUAL(RAW(SYS_tgkill, self, self, SIGUSR1), 0);
	EQUAL(raise(SIGURG), 0);
	EQUAL(kill(0x7ffffffe, SIGTERM), -1);
	EQUAL(kill(self, 99), -1);
	pid_t child = fork();
	if (!child)
		for (;;)
			pause();
	EQUAL(kill(child, SIGKILL), 0);
	EQUAL(waitpid(child, NULL, 0), child);
	EQUAL(kill(0x7fffffff, 63), -1);
}

static void mounts(void)
{
	EQUAL(unshare(geteuid() ? CLONE_NEWUSER | CLONE_NEWNS : CLONE_NEWNS), 0);
	EQUAL(mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL), 0);
	EQUAL(mount("of-tests", "/mnt", "tmpfs", MS_NOSUID | MS_NODEV, "size=64k"), 0);
	EQUAL(mount("of-tests", "/mnt", "nothing", 0, NULL), -1);
	EQUAL(umount("/mnt"), 0);
	EQUAL(umount2("/mnt", MNT_DETACH), -1);
	EQUAL(mount("last", "/nowhere/last", "tmpfs", 0, NULL), -1);
}

static void execs(const char *name)
{
	char *const lists[][6] = {
		{ "true", (char *)name, "one", "two words", "", NULL },
		{ "sh", "-c", ": $0; exit 3", (char *)name, NULL },
		{ "missing", (char *)name, "of nowhere", NULL },
		{ "last", (char *)name, "/nowhere/last", NULL },
	};
	const char *const paths[] = { "/bin/true", "/bin/sh", "/nowhere/missing", "/nowhere/last" };

	for (volatile int i = 0; i < 4; i++) {
		int status;
		// (A fork has none of its memory yet, and the kernel's programs could not read it.)
		pid_t child = vfork();

		if (!child) {
			execv(paths[i], lists[i]);
			_exit(i);
		}
		EQUAL(waitpid(child, &status, 0), child);
		EQUAL(WEXITSTATUS(status), i == 1 ? 3 : i);
	}
}

int main(int argc, char **argv)
{
	const char *kind = argc > 1 ? argv[1] : "";
	cpu_set_t one;

	CPU_ZERO(&one);
	CPU_SET(sched_getcpu(), &one);
	EQUAL(sched_setaffinity(0, sizeof(one), &one), 0);
	printf("%d\n", getpid());
	fflush(stdout);
	if (!strcmp(kind, "opens"))
		opens();
	else if (!strcmp(kind, "stats"))
		stats();
	else if (!strcmp(kind, "kills"))
		kills();
	else if (!strcmp(kind, "mounts"))
		mounts();
	else if (!strcmp(kind, "execs"))
		execs(strrchr(argv[0], '/') + 1);
	else
		return 2;
	return faults != 0;
}
