// SPDX-License-Identifier: MIT OR Apache-2.0
// Signals and system calls: calls that are interrupted, calls in handlers, what handlers see and change, masks.
#include "check.h"
#include <linux/futex.h>
#include <poll.h>
#include <setjmp.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <ucontext.h>

static volatile int handled, depth, deepest;
static pid_t self;

// Once, so late that the call has begun; again for one that has not.
static void soon(long milliseconds)
{
	struct itimerval timer = { { 2, 0 }, { 0, milliseconds * 1000 } };

	handled = 0;
	EQUAL(setitimer(ITIMER_REAL, &timer, NULL), 0);
}

static void no_more(void)
{
	struct itimerval timer = { 0 };

	EQUAL(setitimer(ITIMER_REAL, &timer, NULL), 0);
}

static void count(int number)
{
	(void)number;
	handled++;
	EQUAL(RAW(SYS_getpid), self);
}

static void handle(int number, void (*handler)(int), int flags)
{
	struct sigaction action = { .sa_handler = handler, .sa_flags = flags };

	EQUAL(sigaction(number, &action, NULL), 0);
}

static void blocked_calls_end(void)
{
	int pipes[2], word = 0, poller = epoll_create1(0);
	char byte;
	struct timespec ten = { 10, 0 }, left = { 0, 0 };
	struct epoll_event event;
	sigset_t none, alarm;
	fd_set set;

	handle(SIGALRM, count, 0);
	EQUAL(pipe(pipes), 0);
	sigemptyset(&none);
	sigemptyset(&alarm);
	sigaddset(&alarm, SIGALRM);
#define INTERRUPTED(call)                    \
	do {                                 \
		soon(60);                    \
		errno = 0;                   \
		EQUAL(call, -1);             \
		EQUAL(errno, EINTR);         \
		no_more();                   \
		EQUAL(handled, 1);           \
	} while (0)
	INTERRUPTED(read(pipes[0], &byte, 1));
	INTERRUPTED(nanosleep(&ten, &left));
	CHECK(left.tv_sec == 9 && left.tv_nsec > 0);
	INTERRUPTED(pause());
	INTERRUPTED(syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 0, NULL, NULL, 0));
	INTERRUPTED(poll(&(struct pollfd){ pipes[0], POLLIN, 0 }, 1, -1));
	FD_ZERO(&set);
	FD_SET(pipes[0], &set);
	INTERRUPTED(select(pipes[0] + 1, &set, NULL, NULL, NULL));
	INTERRUPTED(epoll_wait(poller, &event, 1, -1));
	INTERRUPTED(sigsuspend(&none));
	// (musl's goes on.)
	INTERRUPTED(syscall(SYS_rt_sigtimedwait, &none, NULL, &ten, 8));
	pid_t child = fork();
	if (!child) {
		pause();
		_exit(1);
	}
	int status = 0;
	INTERRUPTED(wait4(child, &status, 0, NULL));
	EQUAL(kill(child, SIGKILL), 0);
	EQUAL(wait4(child, &status, 0, NULL), child);
	EQUAL(WTERMSIG(status), SIGKILL);
	// A signal that is blocked until the call: it comes in it, once, and is blocked again.
	EQUAL(sigprocmask(SIG_BLOCK, &alarm, NULL), 0);
	INTERRUPTED(sigsuspend(&none));
	INTERRUPTED(ppoll(&(struct pollfd){ pipes[0], POLLIN, 0 }, 1, NULL, &none));
	INTERRUPTED(pselect(0, NULL, NULL, NULL, NULL, &none));
	INTERRUPTED(epoll_pwait(poller, &event, 1, -1, &none));
	handled = 0;
	EQUAL(raise(SIGALRM), 0);
	EQUAL(handled, 0);
	sigset_t now;
	EQUAL(sigpending(&now), 0);
	EQUAL(sigismember(&now, SIGALRM), 1);
	EQUAL(sigprocmask(SIG_UNBLOCK, &alarm, &now), 0);
	EQUAL(sigismember(&now, SIGALRM), 1);
	EQUAL(handled, 1);
	close(pipes[0]);
	close(pipes[1]);
	close(poller);
}

// What nobody handles does not end a call.
static void ignored_signals_end_nothing(void)
{
	struct timespec moment = { 0, 1000000 };

	handle(SIGUSR1, SIG_IGN, 0);
	for (int i = 0; i < 10; i++) {
		EQUAL(raise(SIGUSR1), 0);
		EQUAL(raise(SIGWINCH), 0);
		EQUAL(raise(SIGURG), 0);
		EQUAL(nanosleep(&moment, NULL), 0);
	}
}

static void nest(int number)
{
	sigset_t mask;

	depth++;
	if (deepest < depth)
		deepest = depth;
	EQUAL(sigprocmask(SIG_BLOCK, NULL, &mask), 0);
	EQUAL(sigismember(&mask, number), 1);
	EQUAL(sigismember(&mask, SIGTERM), number == SIGRTMIN);
	if (number < SIGRTMIN + 8)
		EQUAL(raise(number + 1), 0);
	EQUAL(sigprocmask(SIG_BLOCK, NULL, &mask), 0);
	EQUAL(sigismember(&mask, number + 1), 0);
	depth--;
}

static void handlers_nest(void)
{
	for (int i = 0; i <= 8; i++) {
		struct sigaction action = { .sa_handler = nest };

		if (i == 0)
			sigaddset(&action.sa_mask, SIGTERM);
		EQUAL(sigaction(SIGRTMIN + i, &action, NULL), 0);
	}
	// (SIGTERM stays blocked below.)
	depth = deepest = 0;
	for (int i = 1; i <= 8; i++)
		EQUAL(raise(SIGRTMIN + i), 0);
	EQUAL(deepest, 8);
	EQUAL(depth, 0);
}

static char *alternate;
static volatile int on_alternate;

static void look_at_stack(int number)
{
	char here;
	stack_t now;

	(void)number;
	EQUAL(sigaltstack(NULL, &now), 0);
	EQUAL(now.ss_flags, SS_ONSTACK);
	on_alternate += &here >= alternate && &here < alternate + SIGSTKSZ;
	EQUAL(RAW(SYS_getpid), self);
}

static void alternate_stacks_work(void)
{
	stack_t stack = { .ss_size = SIGSTKSZ }, old;

	EQUAL(sigaltstack(NULL, &old), 0);
	EQUAL(old.ss_flags, SS_DISABLE);
	stack.ss_sp = alternate = malloc(SIGSTKSZ);
	EQUAL(sigaltstack(&stack, NULL), 0);
	handle(SIGUSR2, look_at_stack, SA_ONSTACK);
	for (int i = 0; i < 50; i++)
		EQUAL(raise(SIGUSR2), 0);
	EQUAL(on_alternate, 50);
	stack.ss_flags = SS_DISABLE;
	EQUAL(sigaltstack(&stack, NULL), 0);
	free(alternate);
}

static sigjmp_buf out;

static void leave(int number)
{
	(void)number;
	handled++;
	siglongjmp(out, 1);
}

static void handlers_jump_out_of_calls(void)
{
	struct timespec ten = { 10, 0 };
	int pipes[2];
	char byte;

	EQUAL(pipe(pipes), 0);
	handle(SIGALRM, leave, 0);
	for (volatile int i = 0; i < 20; i++) {
		if (!sigsetjmp(out, 1)) {
			soon(20);
			if (i % 3 == 0)
				nanosleep(&ten, NULL);
			else if (i % 3 == 1)
				EQUAL(read(pipes[0], &byte, 1), 0);
			else
				RAW(SYS_pause);
			CHECK(!"it comes back");
		}
		no_more();
		EQUAL(handled, 1);
		EQUAL(RAW(SYS_getpid), self);
	}
	close(pipes[0]);
	close(pipes[1]);
}

// Out of handlers of signals that a call raises, ever again: no depth may build up.
static void handlers_jump_out_of_kill(void)
{
	handle(SIGUSR1, leave, 0);
	handled = 0;
	for (volatile int i = 0; i < 5000; i++)
		if (!sigsetjmp(out, 1)) {
			RAW(SYS_kill, self, SIGUSR1);
			CHECK(!"it comes back");
		}
	EQUAL(handled, 5000);
}

static void change(int number, siginfo_t *info, void *context)
{
	ucontext_t *user = context;

	(void)number;
	EQUAL(info->si_pid, self);
	// The result of kill, which was 0, and what sigreturn makes of it.
	EQUAL(user->uc_mcontext.gregs[REG_RAX], 0);
	user->uc_mcontext.gregs[REG_RAX] = 4711;
	user->uc_mcontext.gregs[REG_R12] = 4712;
	sigaddset(&user->uc_sigmask, SIGUSR2);
	handled++;
}

static void handlers_change_what_is_returned_to(void)
{
	struct sigaction action = { .sa_sigaction = change, .sa_flags = SA_SIGINFO };
	sigset_t now, usr2;

	EQUAL(sigaction(SIGUSR1, &action, NULL), 0);
	sigemptyset(&usr2);
	sigaddset(&usr2, SIGUSR2);
	handled = 0;
	for (int i = 0; i < 100; i++) {
		long result, changed;

		__asm__ volatile("xor %%r12d, %%r12d; syscall; mov %%r12, %1"
				 : "=a"(result), "=r"(changed)
				 : "0"((long)SYS_kill), "D"((long)self), "S"((long)SIGUSR1)
				 : "rcx", "r11", "r12", "memory");
		EQUAL(result, 4711);
		EQUAL(changed, 4712);
		EQUAL(sigprocmask(SIG_UNBLOCK, &usr2, &now), 0);
		EQUAL(sigismember(&now, SIGUSR2), 1);
		EQUAL(sigismember(&now, SIGUSR1), 0);
	}
	EQUAL(handled, 100);
}

// With every signal blocked code runs that nobody has seen before.
static void calls_work_with_everything_blocked(void)
{
	unsigned char *at = mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	sigset_t all, old, now;

	// (sigfillset and libc spare two.)
	memset(&all, 0xff, sizeof(all));
	EQUAL(RAW(SYS_rt_sigprocmask, SIG_SETMASK, &all, &old, 8), 0);
	for (int i = 0; i < 100; i++) {
		memcpy(at + i * 16, "\xb8\x27\x00\x00\x00\x0f\x05\xc3", 8);
		EQUAL(((long (*)(void))(void *)(at + i * 16))(), self);
	}
	EQUAL(RAW(SYS_rt_sigprocmask, SIG_SETMASK, &old, &now, 8), 0);
	unsigned long mask;
	memcpy(&mask, &now, 8);
	EQUAL(mask, ~((1ul << (SIGKILL - 1)) | (1ul << (SIGSTOP - 1))));
	EQUAL(munmap(at, 4096), 0);
}

static void flag(int number)
{
	(void)number;
	handled++;
}

static void fault(int number, siginfo_t *info, void *context)
{
	EQUAL(RAW(SYS_getpid), self);
	if (number == SIGSEGV)
		EQUAL(info->si_addr, 0x10);
	if (number == SIGTRAP)
		EQUAL(info->si_code, SI_KERNEL);
	if (number == SIGILL)
		EQUAL(info->si_code, ILL_ILLOPN);
	(void)context;
	handled++;
	siglongjmp(out, 1);
}

// The actions of the signals that others may have a use for are what the program set, and work.
static void the_programs_own_fault_handlers_work(void)
{
	const int numbers[] = { SIGSEGV, SIGTRAP, SIGSYS, SIGILL, SIGBUS, SIGUSR1, SIGUSR2, SIGALRM };
	struct sigaction action, now;

	for (unsigned i = 0; i < sizeof(numbers) / sizeof(*numbers); i++)
		handle(numbers[i], SIG_DFL, 0);
	// A shell has what it runs in the background ignore these.
	handle(SIGINT, SIG_DFL, 0);
	handle(SIGQUIT, SIG_DFL, 0);
	handle(SIGHUP, SIG_DFL, 0);
	for (int number = 1; number < 32; number++) {
		if (number == SIGKILL || number == SIGSTOP)
			continue;
		EQUAL(sigaction(number, NULL, &now), 0);
		CHECK(now.sa_handler == SIG_DFL);
		memset(&action, 0, sizeof(action));
		action.sa_handler = flag;
		action.sa_flags = number % 2 ? SA_RESTART : SA_NODEFER;
		sigaddset(&action.sa_mask, SIGHUP);
		EQUAL(sigaction(number, &action, NULL), 0);
		EQUAL(sigaction(number, NULL, &now), 0);
		CHECK(now.sa_handler == flag);
		EQUAL(now.sa_flags & ~0x04000000, action.sa_flags);
		EQUAL(sigismember(&now.sa_mask, SIGHUP), 1);
		handled = 0;
		EQUAL(raise(number), 0);
		EQUAL(kill(self, number), 0);
		EQUAL(handled, 2);
		handle(number, SIG_IGN, 0);
		EQUAL(raise(number), 0);
		EQUAL(handled, 2);
		handle(number, SIG_DFL, 0);
	}
	action.sa_sigaction = fault;
	action.sa_flags = SA_SIGINFO;
	for (unsigned i = 0; i < 5; i++)
		EQUAL(sigaction(numbers[i], &action, NULL), 0);
	handled = 0;
	for (volatile int i = 0; i < 50; i++) {
		if (!sigsetjmp(out, 1))
			__asm__ volatile("movl $1, 0x10" : : : "memory");
		if (!sigsetjmp(out, 1))
			__asm__ volatile("int3");
		if (!sigsetjmp(out, 1))
			__asm__ volatile("ud2");
	}
	EQUAL(handled, 150);
	for (unsigned i = 0; i < 5; i++)
		handle(numbers[i], SIG_DFL, 0);
	// Without a handler they kill.
	for (unsigned i = 0; i < 3; i++) {
		pid_t child = fork();
		if (!child) {
			RAW(SYS_getpid);
			raise(numbers[i]);
			_exit(1);
		}
		int status;
		EQUAL(waitpid(child, &status, 0), child);
		EQUAL(WTERMSIG(status), numbers[i]);
	}
}

int main(void)
{
	self = getpid();
	blocked_calls_end();
	ignored_signals_end_nothing();
	handlers_nest();
	alternate_stacks_work();
	handlers_jump_out_of_calls();
	handlers_jump_out_of_kill();
	handlers_change_what_is_returned_to();
	calls_work_with_everything_blocked();
	the_programs_own_fault_handlers_work();
	return faults != 0;
}
