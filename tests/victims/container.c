// SPDX-License-Identifier: MIT OR Apache-2.0
// Runs a program as a container's: in namespaces of its own, with the root file system of an image (a read-only lower layer, below
// an upper one), and with as little privilege as containers have. Mounts are made in a private mount namespace, which ends with the
// container; the container ends with this process. First line of output: the program's process id.
//
// container FLAGS IMAGE SCRATCH PROGRAM [ARGUMENT]...
//   u  a user namespace of its own, whose root is the caller
//   p  /proc of its own, and /sys; h: of which each user sees only what is theirs
//   r  the root cannot be written to
//   c  Docker's capabilities only; s: Docker's refusals of calls; n: no new privileges
//   d  the devices that every container has, and /dev/shm
//   w  /mnt is the host's directory SCRATCH/shared
//   o  an ordinary user in it (1000)
#define _GNU_SOURCE
#include <errno.h>
#include <linux/audit.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <fcntl.h>
#include <grp.h>
#include <unistd.h>

// Docker's default set.
#define CAPABILITIES 0xa80425fbu
#define CAPABILITIES_MAX 64
#define PATH_MAX_BYTES 4096

static const char *flags;

static int has(char flag) { return strchr(flags, flag) != NULL; }

static void must(long result, const char *what)
{
	if (result < 0) {
		fprintf(stderr, "container: %s: %s\n", what, strerror(errno));
		exit(125);
	}
}

static void put(const char *path, const char *text)
{
	int file = open(path, O_WRONLY);

	must(file, path);
	must(write(file, text, strlen(text)), path);
	close(file);
}

static char *under(const char *directory, const char *name)
{
	char *path = malloc(PATH_MAX_BYTES);

	snprintf(path, PATH_MAX_BYTES, "%s/%s", directory, name);
	return path;
}

static void drop_capabilities(void)
{
	struct __user_cap_header_struct header = { _LINUX_CAPABILITY_VERSION_3, 0 };
	struct __user_cap_data_struct data[2] = { { CAPABILITIES, CAPABILITIES, 0 }, { 0, 0, 0 } };

	for (int one = 0; one < CAPABILITIES_MAX; one++)
		if (one >= 32 || !(CAPABILITIES >> one & 1))
			prctl(PR_CAPBSET_DROP, one);
	must(syscall(SYS_capset, &header, data), "capset");
}

// What Docker's default profile refuses to a container without CAP_SYS_ADMIN, CAP_BPF and CAP_PERFMON, as far as it matters here.
static void refuse_calls(void)
{
	static const unsigned short refused[] = { SYS_bpf, SYS_perf_event_open, SYS_mount, SYS_umount2, SYS_unshare, SYS_setns,
						  SYS_pivot_root, SYS_fanotify_init, SYS_keyctl, SYS_add_key, SYS_userfaultfd,
						  SYS_io_uring_setup, SYS_open_by_handle_at, SYS_kcmp, SYS_syslog };
	struct sock_filter code[64];
	unsigned at = 0, count = sizeof(refused) / sizeof(*refused);

	code[at++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
	for (unsigned one = 0; one < count; one++) {
		code[at++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, refused[one], 0, 1);
		code[at++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM);
	}
	code[at++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone3, 0, 1);
	code[at++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS);
	code[at++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
	struct sock_fprog program = { at, code };

	must(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), "seccomp");
}

static void mount_devices(const char *root)
{
	static const char *const devices[] = { "/dev/null", "/dev/zero", "/dev/random", "/dev/urandom" };
	char *directory = under(root, "dev");

	mkdir(directory, 0755);
	must(mount("tmpfs", directory, "tmpfs", MS_NOSUID, "mode=755"), "dev");
	for (unsigned one = 0; one < sizeof(devices) / sizeof(*devices); one++) {
		close(open(under(root, devices[one]), O_WRONLY | O_CREAT, 0666));
		must(mount(devices[one], under(root, devices[one]), NULL, MS_BIND, NULL), devices[one]);
	}
	must(symlink("/proc/self/fd", under(directory, "fd")), "fd");
	mkdir(under(directory, "shm"), 0777);
	must(mount("tmpfs", under(directory, "shm"), "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777"), "shm");
}

static void mount_root(const char *image, const char *scratch)
{
	char options[3 * PATH_MAX_BYTES], *merged = under(scratch, "merged");

	must(mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL), "a private mount namespace");
	mkdir(under(scratch, "upper"), 0755);
	mkdir(under(scratch, "work"), 0755);
	mkdir(merged, 0755);
	snprintf(options, sizeof(options), "lowerdir=%s,upperdir=%s/upper,workdir=%s/work", image, scratch, scratch);
	must(mount("overlay", merged, "overlay", 0, options), "overlay");
	if (has('p')) {
		mkdir(under(merged, "proc"), 0555);
		must(mount("proc", under(merged, "proc"), "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC,
			   has('h') ? "hidepid=invisible" : NULL),
		     "proc");
		mkdir(under(merged, "sys"), 0555);
		must(mount("sysfs", under(merged, "sys"), "sysfs", MS_NOSUID | MS_NODEV | MS_NOEXEC | MS_RDONLY, NULL), "sys");
	}
	if (has('d'))
		mount_devices(merged);
	if (has('w')) {
		mkdir(under(merged, "mnt"), 0755);
		must(mount(under(scratch, "shared"), under(merged, "mnt"), NULL, MS_BIND | MS_REC, NULL), "bind");
	}
	must(chdir(merged), merged);
	must(syscall(SYS_pivot_root, ".", "."), "pivot_root");
	must(umount2(".", MNT_DETACH), "umount");
	must(chdir("/"), "/");
	if (has('r'))
		must(mount(NULL, "/", NULL, MS_REMOUNT | MS_BIND | MS_RDONLY, NULL), "a read-only root");
}

static void run(char **arguments)
{
	struct rlimit files = { 256, 256 };

	must(sethostname("contained", 9), "sethostname");
	mount_root(arguments[0], arguments[1]);
	setrlimit(RLIMIT_NOFILE, &files);
	if (has('o')) {
		if (!has('u'))
			must(setgroups(0, NULL), "setgroups");
		must(setresgid(1000, 1000, 1000), "setresgid");
		must(setresuid(1000, 1000, 1000), "setresuid");
		must(prctl(PR_SET_DUMPABLE, 1), "dumpable");
	} else if (has('c')) {
		drop_capabilities();
	}
	if (has('n'))
		must(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no new privileges");
	if (has('s'))
		refuse_calls();
	execve(arguments[2], arguments + 2, (char *[]){ "PATH=/bin:/usr/bin", "HOME=/root", NULL });
	must(-1, arguments[2]);
}

int main(int argc, char **argv)
{
	int spaces = CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWNET | CLONE_NEWCGROUP;
	unsigned uid = geteuid(), gid = getegid();
	int told[2], status;
	char map[64], byte;
	pid_t child;

	if (argc < 5)
		return 125;
	flags = argv[1];
	if (has('u')) {
		must(unshare(CLONE_NEWUSER), "a user namespace");
		snprintf(map, sizeof(map), "0 %u 1", uid);
		put("/proc/self/uid_map", map);
		put("/proc/self/setgroups", "deny");
		snprintf(map, sizeof(map), "0 %u 1", gid);
		put("/proc/self/gid_map", map);
	}
	must(unshare(spaces), "namespaces");
	must(pipe(told), "pipe");
	child = fork();
	must(child, "fork");
	if (child == 0) {
		must(prctl(PR_SET_PDEATHSIG, SIGKILL), "pdeathsig");
		close(told[1]);
		must(read(told[0], &byte, 1), "read");
		close(told[0]);
		run(argv + 2);
	}
	printf("%d\n", child);
	fflush(stdout);
	must(write(told[1], "", 1), "write");
	waitpid(child, &status, 0);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
