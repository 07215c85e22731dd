// Begins and ends threads and processes, executes programs, and sends signals: the tracepoints of a task's life.
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static pthread_barrier_t together;

static void *end(void *unused)
{
	return unused;
}

static void *stay(void *unused)
{
	pthread_barrier_wait(&together);
	pause();
	return unused;
}

static void handle(int signal)
{
	(void)signal;
}

static void reap(pid_t child)
{
	if (waitpid(child, NULL, 0) != child)
		abort();
}

static void everything(const char *self)
{
	pthread_t thread;
	sigset_t set;
	siginfo_t info = { .si_signo = SIGUSR1, .si_code = SI_QUEUE, .si_errno = 5 };
	pid_t child = fork();

	if (child == 0)
		_exit(3);
	reap(child);
	child = vfork();
	if (child == 0) {
		execl(self, self, "nothing", NULL);
		_exit(1);
	}
	reap(child);
	child = vfork();
	if (child == 0)
		_exit(4);
	reap(child);
	pthread_create(&thread, NULL, end, NULL);
	pthread_join(thread, NULL);
	signal(SIGUSR1, handle);
	signal(SIGUSR2, SIG_IGN);
	kill(getpid(), SIGUSR1);
	kill(getpid(), SIGUSR2);
	kill(getpid(), SIGWINCH);
	kill(getpid(), 0);
	kill(getpid(), 65);
	kill(1 << 22, SIGKILL);
	raise(SIGUSR1);
	syscall(SYS_tkill, getpid(), SIGUSR1);
	syscall(SYS_rt_sigqueueinfo, getpid(), SIGUSR1, &info);
	syscall(SYS_pidfd_send_signal, syscall(SYS_pidfd_open, getpid(), 0), SIGUSR1, NULL, 0);
	kill(0, SIGUSR1);
	kill(-getpid(), SIGUSR2);
	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	sigprocmask(SIG_BLOCK, &set, NULL);
	kill(getpid(), SIGUSR1);
	kill(getpid(), SIGUSR1);
	sigprocmask(SIG_UNBLOCK, &set, NULL);
	signal(SIGCHLD, handle);
	child = fork();
	if (child == 0)
		_exit(5);
	reap(child);
	signal(SIGCHLD, SIG_IGN);
	child = fork();
	if (child == 0)
		_exit(6);
	waitpid(child, NULL, 0);
}

static void killed(void)
{
	pid_t child = fork();

	if (child == 0) {
		pause();
		_exit(1);
	}
	// (A tracer has to notice that it is there.)
	usleep(300000);
	kill(child, SIGTERM);
	reap(child);
	child = fork();
	if (child == 0) {
		usleep(300000);
		abort();
	}
	reap(child);
}

/* Programs are executed whose processes' creators end at once, and theirs, and this one. */
static void orphans(const char *self)
{
	for (int i = 0; i < 40; i++) {
		pid_t child = fork();

		if (child == 0) {
			if (fork() || fork())
				_exit(0);
			execl(self, self, "nothing", NULL);
			_exit(1);
		}
		reap(child);
	}
}

int main(int count, char **arguments)
{
	const char *kind = count > 1 ? arguments[1] : "";
	pthread_t thread;

	if (strcmp(kind, "everything") == 0) {
		setsid();
		everything(arguments[0]);
	} else if (strcmp(kind, "group") == 0) {
		pthread_barrier_init(&together, NULL, 4);
		for (int i = 0; i < 3; i++)
			pthread_create(&thread, NULL, stay, NULL);
		pthread_barrier_wait(&together);
		exit(7);
	} else if (strcmp(kind, "killed") == 0) {
		killed();
	} else if (strcmp(kind, "orphans") == 0) {
		orphans(arguments[0]);
	} else if (strcmp(kind, "raise") == 0) {
		kill(getpid(), SIGTERM);
	}
	return 0;
}
