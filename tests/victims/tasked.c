// Calls `tell` where a line of input says: "main", "thread" (a second thread), "fork" (a child) or "quit". Then prints the
// process's, the thread's and the parent's id there. Arguments of `tell` are the device and the inode of its pid namespace.
// After "forbid" a call of pidfd_open fails with ENOSYS in the first thread.
#define _GNU_SOURCE
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static sem_t asked, done;

__attribute__((noinline, noclone)) void tell(unsigned long device, unsigned long inode)
{
	__asm__ volatile("" ::"r"(device), "r"(inode) : "memory");
}

static void speak(void)
{
	struct stat status = {};

	stat("/proc/thread-self/ns/pid", &status);
	tell(status.st_dev, status.st_ino);
	printf("%d %ld %d\n", getpid(), syscall(SYS_gettid), getppid());
	fflush(stdout);
}

static void forbid(void)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_pidfd_open, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = { sizeof(code) / sizeof(*code), code };

	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
		abort();
}

static void *second(void *unused)
{
	prctl(PR_SET_NAME, "the second) 1 2");
	for (;;) {
		sem_wait(&asked);
		speak();
		sem_post(&done);
	}
	return unused;
}

int main(void)
{
	pthread_t thread;
	char line[16];

	sem_init(&asked, 0, 0);
	sem_init(&done, 0, 0);
	pthread_create(&thread, NULL, second, NULL);
	printf("ready\n");
	fflush(stdout);
	while (fgets(line, sizeof(line), stdin)) {
		if (strcmp(line, "main\n") == 0) {
			speak();
		} else if (strcmp(line, "thread\n") == 0) {
			sem_post(&asked);
			sem_wait(&done);
		} else if (strcmp(line, "forbid\n") == 0) {
			forbid();
			speak();
		} else if (strcmp(line, "fork\n") == 0) {
			pid_t child = fork();

			if (child == 0) {
				prctl(PR_SET_NAME, "a child");
				speak();
				_exit(0);
			}
			waitpid(child, NULL, 0);
		} else {
			break;
		}
	}
	return 0;
}
