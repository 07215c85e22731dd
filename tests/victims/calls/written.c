// SPDX-License-Identifier: MIT OR Apache-2.0
// Calls in code that the victim writes while it runs: by threads, by handlers, with all signals blocked, with an action for
// SIGSYS of its own, and calls that begin threads and processes.
#include "written.h"
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <sys/epoll.h>
#include <sys/time.h>
#include <sys/wait.h>

static volatile int handled, refused;
static pid_t parent;

static void ask(int signal)
{
	(void)signal;
	handled++;
	EQUAL(call(SYS_getppid), parent);
}

// Where SIGSYS is blocked.
static void ask_unseen(int signal)
{
	(void)signal;
	handled++;
	EQUAL(call(SYS_getpgid, 0), getpgrp());
}

static void refuse(int signal, siginfo_t *info, void *context)
{
	(void)context;
	EQUAL(signal, SIGSYS);
	CHECK(info->si_code <= 0);
	refused++;
	// It is blocked here.
	EQUAL(call(SYS_getpgid, 0), getpgrp());
}

static void act(int signal, void (*handler)(int), int flags, int all)
{
	struct sigaction action = { .sa_handler = handler, .sa_flags = flags }, is = { 0 };

	if (all)
		sigfillset(&action.sa_mask);
	EQUAL(sigaction(signal, &action, NULL), 0);
	EQUAL(sigaction(signal, NULL, &is), 0);
	CHECK(is.sa_handler == handler);
	EQUAL(sigismember(&is.sa_mask, SIGSYS), all);
	EQUAL(is.sa_flags & ~0x04000000, flags);
}

static void *run(void *unused)
{
	for (int i = 0; i < 200; i++)
		EQUAL(call(SYS_getppid), parent);
	return unused;
}

static void in_threads(void)
{
	pthread_t threads[4];

	for (int i = 0; i < 4; i++)
		EQUAL(pthread_create(&threads[i], NULL, run, NULL), 0);
	run(NULL);
	for (int i = 0; i < 4; i++)
		EQUAL(pthread_join(threads[i], NULL), 0);
}

static void in_handlers(void)
{
	for (int all = 0; all < 2; all++) {
		act(SIGUSR1, ask, 0, all);
		handled = 0;
		// From written code, and from where all is known.
		EQUAL(call(SYS_tgkill, getpid(), gettid(), SIGUSR1), 0);
		EQUAL(raise(SIGUSR1), 0);
		EQUAL(handled, 2);
	}
	// On a stack of its own.
	static char stack[65536];
	stack_t other = { .ss_sp = stack, .ss_size = sizeof(stack) }, before;
	EQUAL(call(SYS_sigaltstack, &other, &before), 0);
	act(SIGUSR1, ask, SA_ONSTACK, 1);
	EQUAL(call(SYS_tgkill, getpid(), gettid(), SIGUSR1), 0);
	EQUAL(call(SYS_getppid), parent);
	EQUAL(sigaltstack(&before, &other), 0);
	CHECK(other.ss_sp == stack);
	EQUAL(handled, 3);
}

static void interrupted(void)
{
	int pipes[2];
	struct itimerval soon = { { 0, 0 }, { 0, 20000 } };
	char byte;

	EQUAL(pipe(pipes), 0);
	act(SIGALRM, ask, 0, 0);
	EQUAL(setitimer(ITIMER_REAL, &soon, NULL), 0);
	EQUAL(call(SYS_read, pipes[0], &byte, 1), -EINTR);
	for (int round = 0; round < 2; round++) {
		// The child writes once the call is made again.
		handled = 0;
		act(SIGALRM, ask, SA_RESTART, round);
		EQUAL(setitimer(ITIMER_REAL, &soon, NULL), 0);
		pid_t child = fork();
		if (!child) {
			usleep(60000);
			_exit(write(pipes[1], "x", 1) != 1);
		}
		EQUAL(call(SYS_read, pipes[0], &byte, 1), 1);
		EQUAL(handled, 1);
		int status = 1;
		EQUAL(waitpid(child, &status, 0), child);
		EQUAL(status, 0);
	}
	close(pipes[0]);
	close(pipes[1]);
}

static sigjmp_buf back;

static void jump(int signal)
{
	(void)signal;
	siglongjmp(back, 1);
}

static void left(void)
{
	struct itimerval soon = { { 0, 0 }, { 0, 20000 } };

	act(SIGALRM, jump, 0, 1);
	if (!sigsetjmp(back, 1)) {
		EQUAL(setitimer(ITIMER_REAL, &soon, NULL), 0);
		call(SYS_pause);
	}
	EQUAL(call(SYS_getppid), parent);
}

static void blocked(void)
{
	sigset_t all, before, now;

	sigfillset(&all);
	for (int round = 0; round < 4; round++) {
		// Half of the ways are those of written code.
		if (round & 1)
			EQUAL(call(SYS_rt_sigprocmask, SIG_SETMASK, &all, &before, 8), 0);
		else
			EQUAL(sigprocmask(SIG_BLOCK, &all, &before), 0);
		EQUAL(sigismember(&before, SIGSYS), 0);
		EQUAL(call(SYS_getpgid, 0), getpgrp());
		EQUAL(sigprocmask(SIG_BLOCK, NULL, &now), 0);
		EQUAL(sigismember(&now, SIGSYS), 1);
		act(SIGUSR1, ask, 0, 1);
		handled = 0;
		EQUAL(raise(SIGUSR1), 0);
		EQUAL(handled, 0);
		if (round & 2)
			EQUAL(RAW(SYS_rt_sigprocmask, SIG_SETMASK, &before, NULL, 8), 0);
		else
			EQUAL(sigprocmask(SIG_UNBLOCK, &all, NULL), 0);
		EQUAL(handled, 1);
		EQUAL(call(SYS_getppid), parent);
	}
	// While it waits only.
	act(SIGUSR1, ask_unseen, 0, 1);
	sigdelset(&all, SIGUSR1);
	sigset_t user;
	sigemptyset(&user);
	sigaddset(&user, SIGUSR1);
	struct timespec never = { 0, 0 };
	for (int round = 0; round < 2; round++) {
		EQUAL(sigprocmask(SIG_BLOCK, &user, &before), 0);
		EQUAL(raise(SIGUSR1), 0);
		if (round)
			EQUAL(call(SYS_rt_sigsuspend, &all, 8), -EINTR);
		else
			EQUAL(sigsuspend(&all), -1);
		EQUAL(call(SYS_ppoll, NULL, 0, &never, &all, 8), 0);
		EQUAL(ppoll(NULL, 0, &never, &all), 0);
		EQUAL(call(SYS_getppid), parent);
		EQUAL(sigprocmask(SIG_SETMASK, &before, NULL), 0);
	}
}

static void with_sigsys(void)
{
	struct sigaction own = { .sa_sigaction = refuse, .sa_flags = SA_SIGINFO }, is;
	sigset_t one;

	EQUAL(sigaction(SIGSYS, &own, &is), 0);
	CHECK(is.sa_handler == SIG_DFL);
	refused = 0;
	EQUAL(raise(SIGSYS), 0);
	EQUAL(refused, 1);
	EQUAL(call(SYS_getppid), parent);
	EQUAL(call(SYS_rt_sigaction, SIGSYS, NULL, &is, 8), 0);
	CHECK(is.sa_sigaction == refuse);
	sigemptyset(&one);
	sigaddset(&one, SIGSYS);
	EQUAL(sigprocmask(SIG_BLOCK, &one, NULL), 0);
	EQUAL(raise(SIGSYS), 0);
	EQUAL(call(SYS_getpgid, 0), getpgrp());
	EQUAL(refused, 1);
	EQUAL(sigprocmask(SIG_UNBLOCK, &one, NULL), 0);
	EQUAL(refused, 2);
	signal(SIGSYS, SIG_IGN);
	EQUAL(raise(SIGSYS), 0);
	EQUAL(call(SYS_getppid), parent);
	CHECK(signal(SIGSYS, SIG_DFL) == SIG_IGN);
	pid_t child = fork();
	if (!child) {
		raise(SIGSYS);
		_exit(1);
	}
	siginfo_t info = { 0 };
	EQUAL(waitid(P_PID, child, &info, WEXITED), 0);
	EQUAL(info.si_status, SIGSYS);
}

static void processes(char *self)
{
	int status;
	char *again[] = { self, "again", NULL };
	pid_t child = call(SYS_fork);

	if (!child) {
		EQUAL(call(SYS_getppid), getppid());
		call(SYS_exit_group, faults != 0);
	}
	EQUAL(waitpid(child, &status, 0), child);
	EQUAL(status, 0);
	child = written_vfork();
	if (!child) {
		EQUAL(call(SYS_getppid), getppid());
		call(SYS_exit_group, 5);
	}
	CHECK(child > 0);
	EQUAL(call(SYS_getppid), parent);
	EQUAL(waitpid(child, &status, 0), child);
	EQUAL(WEXITSTATUS(status), 5);
	child = vfork();
	if (!child) {
		call(SYS_execve, self, again, NULL);
		_exit(1);
	}
	EQUAL(waitpid(child, &status, 0), child);
	EQUAL(WEXITSTATUS(status), 7);
	// (glibc's takes all signals away meanwhile.)
	EQUAL(system("exit 4") >> 8, 4);
	EQUAL(call(SYS_getppid), parent);
}

static void a_thread_without_a_library(void)
{
	static char stack[65536] __attribute__((aligned(16)));
	static volatile int there;
	void **top = (void **)(stack + sizeof(stack)) - 2;

	*top = thread_code;
	there = 1;
	long thread = call(SYS_clone, CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM |
			   CLONE_CHILD_CLEARTID, top, NULL, &there, 0);
	CHECK(thread > 0);
	while (__atomic_load_n(&there, __ATOMIC_ACQUIRE))
		sched_yield();
}

static void old(void)
{
	for (int i = 0; i < 10; i++) {
		EQUAL(old_getpid(), getpid());
		EQUAL(call(SYS_getppid), parent);
	}
}

static void bombarded(void)
{
	struct itimerval often = { { 0, 300 }, { 0, 300 } }, never = { 0 };

	// (How often is up to chance: its calls are not counted.)
	act(SIGALRM, SIG_IGN, 0, 0);
	EQUAL(setitimer(ITIMER_REAL, &often, NULL), 0);
	for (int i = 0; i < 3000; i++)
		EQUAL(call(SYS_getppid), parent);
	EQUAL(setitimer(ITIMER_REAL, &never, NULL), 0);
}

// For input, by a call that being stopped ends.
static void wait_for_input(void)
{
	struct epoll_event event = { .events = EPOLLIN }, found;
	long events = epoll_create1(0);

	EQUAL(epoll_ctl(events, EPOLL_CTL_ADD, 0, &event), 0);
	printf("ready\n");
	fflush(stdout);
	EQUAL(call(SYS_epoll_pwait, events, &found, 1L, -1L, NULL), 1);
}

// For a signal or for a while, in a call that blocks all other signals meanwhile.
static void wait_with_signals_blocked(const char *how)
{
	struct timespec while_ = { 2, 0 };
	sigset_t all, user;

	act(SIGUSR1, ask_unseen, 0, 1);
	sigemptyset(&user);
	sigaddset(&user, SIGUSR1);
	EQUAL(sigprocmask(SIG_BLOCK, &user, NULL), 0);
	sigfillset(&all);
	sigdelset(&all, SIGUSR1);
	printf("ready\n");
	fflush(stdout);
	if (!strcmp(how, "suspend"))
		EQUAL(sigsuspend(&all), -1);
	else if (!strcmp(how, "suspend-written"))
		EQUAL(call(SYS_rt_sigsuspend, &all, 8), -EINTR);
	else if (!strcmp(how, "poll"))
		EQUAL(ppoll(NULL, 0, &while_, &all), 0);
	else
		EQUAL(call(SYS_ppoll, NULL, 0, &while_, &all, 8), 0);
	EQUAL(handled, *how == 's');
	for (int i = 0; i < 3; i++)
		EQUAL(call(SYS_getppid), parent);
}

int main(int count, char **words)
{
	if (count > 1 && !strcmp(words[1], "again"))
		return 7;
	if (count > 1 && !strcmp(words[1], "wait")) {
		write_code();
		wait_for_input();
		return faults != 0;
	}
	if (count > 1 && (*words[1] == 's' || *words[1] == 'p')) {
		parent = getppid();
		write_code();
		wait_with_signals_blocked(words[1]);
		return faults != 0;
	}
	// Of many rounds each is without what has to wait for children.
	int rounds = count > 1 ? atoi(words[1]) : 1;

	parent = getppid();
	write_code();
	for (int i = 0; i < rounds; i++) {
		in_threads();
		in_handlers();
		if (rounds == 1)
			interrupted();
		left();
		blocked();
		with_sigsys();
		if (rounds == 1)
			processes(words[0]);
		a_thread_without_a_library();
		old();
		bombarded();
	}
	return faults != 0;
}
