// Calls `tell`, where programs send signals, and prints what came of it. A line of input makes it begin.
#define _GNU_SOURCE
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { TO_PROCESS, TO_THREAD, FROM_RETURN };

static volatile int stage;
static const char *where;
static sigjmp_buf back;

__attribute__((noinline, noclone)) long tell(long signal, long how, long times, const char *text)
{
	// (The kernel's signal comes behind the probed instruction.)
	__asm__ volatile("nop");
	stage = 1;
	__asm__ volatile("" ::"r"(signal), "r"(how), "r"(times), "r"(text) : "memory");
	return signal;
}

static void send(long signal, long how, long times)
{
	stage = 0;
	tell(signal, how, times, "text");
}

static void on_signal(int signal, siginfo_t *info, void *context)
{
	printf("%s: signal %d, code %d, errno %d, pid %d, uid %u, stage %d, first thread %d\n", where, signal, info->si_code,
	       info->si_errno, info->si_pid, info->si_uid, stage, getpid() == (int)syscall(SYS_gettid));
	(void)context;
}

static void on_other(int signal)
{
	printf("%s: signal %d sends another\n", where, signal);
	send(SIGUSR1, TO_PROCESS, 1);
	printf("%s: signal %d is over\n", where, signal);
}

static void on_jump(int signal)
{
	siglongjmp(back, signal);
}

static void handle(int signal, void *handler)
{
	struct sigaction action = { .sa_flags = handler == (void *)on_signal ? SA_SIGINFO : 0 };

	action.sa_handler = handler;
	sigaction(signal, &action, NULL);
}

static void *in_thread(void *unused)
{
	where = "thread";
	send(SIGUSR1, TO_PROCESS, 1);
	send(SIGUSR1, TO_THREAD, 1);
	send(SIGUSR1, FROM_RETURN, 1);
	return unused;
}

static void *waiting(void *set)
{
	siginfo_t info;

	sigwaitinfo(set, &info);
	printf("%s: another thread got signal %d, code %d\n", where, info.si_signo, info.si_code);
	return NULL;
}

// A child that gets a signal.
static void child(long signal, long how, void *handler)
{
	int status = 0;
	pid_t pid = fork();

	if (pid == 0) {
		handle(signal, handler);
		send(signal, how, 1);
		_exit(7);
	}
	waitpid(pid, &status, WUNTRACED);
	printf("child with signal %ld: status %x\n", signal, status & ~0x80);
	if (WIFSTOPPED(status)) {
		kill(pid, SIGCONT);
		waitpid(pid, &status, 0);
		printf("then: status %x\n", status);
	}
}

int main(void)
{
	static const int taken[] = { SIGUSR1, SIGSEGV, SIGBUS, SIGTRAP, SIGSYS, SIGCHLD, 36, 64 };
	static const long ends[] = { SIGTERM, SIGKILL, SIGSTOP, SIGSEGV, SIGCHLD, 40, 0, 65, -1 };
	pthread_t thread;
	sigset_t set;
	char line[16];

	setvbuf(stdout, NULL, _IONBF, 0);
	puts("ready");
	if (!fgets(line, sizeof(line), stdin))
		return 1;
	handle(SIGUSR2, on_other);
	handle(SIGALRM, on_jump);
	for (unsigned i = 0; i < sizeof(taken) / sizeof(*taken); i++) {
		handle(taken[i], on_signal);
		for (long how = TO_PROCESS; how <= FROM_RETURN; how++) {
			where = how == TO_PROCESS ? "process" : how == TO_THREAD ? "thread" : "return";
			send(taken[i], how, 3);
		}
		where = "ignored";
		handle(taken[i], SIG_IGN);
		send(taken[i], TO_PROCESS, 1);
		where = "blocked";
		handle(taken[i], on_signal);
		sigemptyset(&set);
		sigaddset(&set, taken[i]);
		sigprocmask(SIG_BLOCK, &set, NULL);
		send(taken[i], TO_PROCESS, 1);
		printf("signal %d is blocked\n", taken[i]);
		sigprocmask(SIG_UNBLOCK, &set, NULL);
	}
	handle(SIGCHLD, SIG_DFL);
	where = "nested";
	send(SIGUSR2, TO_PROCESS, 1);
	where = "jump";
	for (int i = 0; i < 3; i++) {
		if (sigsetjmp(back, 1) == 0)
			send(SIGALRM, TO_PROCESS, 1);
		else
			printf("jumped at stage %d\n", stage);
	}
	pthread_create(&thread, NULL, in_thread, NULL);
	pthread_join(thread, NULL);
	where = "waiting";
	sigemptyset(&set);
	sigaddset(&set, SIGUSR1);
	sigprocmask(SIG_BLOCK, &set, NULL);
	pthread_create(&thread, NULL, waiting, &set);
	send(SIGUSR1, TO_PROCESS, 1);
	pthread_join(thread, NULL);
	sigprocmask(SIG_UNBLOCK, &set, NULL);
	where = "call";
	printf("group %d\n", getpgid(1 << 30) < 0);
	for (unsigned i = 0; i < sizeof(ends) / sizeof(*ends); i++) {
		child(ends[i], TO_PROCESS, SIG_DFL);
		child(ends[i], TO_THREAD, SIG_DFL);
	}
	child(SIGTERM, TO_PROCESS, SIG_IGN);
	puts("end");
	return fgets(line, sizeof(line), stdin) ? 0 : 1;
}
