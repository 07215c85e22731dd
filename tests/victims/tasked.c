// Calls `tell` where a line of input says: "main", "thread" (a second thread), "fork" (a child) or "quit". Then prints the
// process's, the thread's and the parent's id there.
#define _GNU_SOURCE
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static sem_t asked, done;

__attribute__((noinline, noclone)) void tell(void)
{
	__asm__ volatile("" ::: "memory");
}

static void speak(void)
{
	tell();
	printf("%d %ld %d\n", getpid(), syscall(SYS_gettid), getppid());
	fflush(stdout);
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
