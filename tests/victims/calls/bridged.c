// SPDX-License-Identifier: MIT OR Apache-2.0
// System calls in routines like those of C libraries in which threads are cancelled: a handler looks whether it has interrupted
// one between its first instruction and its system call, and unwinds the thread from there, or leads it to where it ends.
#include "check.h"
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <semaphore.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <ucontext.h>

#define CANCELLED 8

// The word, the number, and the arguments of the call. `bits` tests one bit of the word, `word` all.
typedef long bridge(volatile int *cancelled, long number, long a, long b, long c, long d, long e, long f);
extern __attribute__((visibility("hidden"))) bridge bits, word;
extern __attribute__((visibility("hidden"))) char bits_end[], word_end[], word_cancelled[];

#define BRIDGE(name, begin)                                                                    \
	__asm__(".pushsection .text\n"                                                         \
		".p2align 4\n"                                                                 \
		".globl " #name "\n"                                                           \
		".hidden " #name "\n"                                                          \
		".type " #name ", @function\n" #name ":\n"                                     \
		".cfi_startproc\n"                                                             \
		"mov (%rdi), %eax\n" begin "\n"                                                \
		"mov %rdi, %r11\n"                                                             \
		"mov %rsi, %rax\n"                                                             \
		"mov %rdx, %rdi\n"                                                             \
		"mov %rcx, %rsi\n"                                                             \
		"mov %r8, %rdx\n"                                                              \
		"mov %r9, %r10\n"                                                              \
		"mov 8(%rsp), %r8\n"                                                           \
		"mov 16(%rsp), %r9\n"                                                          \
		"mov %r11, 8(%rsp)\n"                                                          \
		"syscall\n"                                                                    \
		".globl " #name "_end\n"                                                       \
		".hidden " #name "_end\n" #name "_end:\n"                                      \
		"ret\n"                                                                        \
		".globl " #name "_cancelled\n"                                                 \
		".hidden " #name "_cancelled\n" #name "_cancelled:\n"                          \
		"1: jmp end_thread\n"                                                          \
		".cfi_endproc\n"                                                               \
		".size " #name ", . - " #name "\n"                                             \
		".popsection\n")
BRIDGE(bits, "testb $8, (%rdi); jne end_thread");
BRIDGE(word, "test %eax, %eax; jne 1f");

static __thread volatile int cancelled;
static volatile int *volatile theirs;
static volatile unsigned long interrupted;
static volatile int handled, cleaned;
static int sockets[2];
static sem_t begun;
static sigjmp_buf away;

__attribute__((noreturn, used, visibility("hidden"))) void end_thread(void)
{
	pthread_exit(PTHREAD_CANCELED);
}

// Each kind of routine has callers of its own, with other code behind the call.
static __attribute__((noinline)) long by_bits(long number, long a, long b, long c, long d, long e, long f)
{
	long result = bits(&cancelled, number, a, b, c, d, e, f);

	if (result == -EINTR && cancelled & CANCELLED)
		end_thread();
	return result;
}

static __attribute__((noinline)) long by_word(long number, long a, long b, long c, long d, long e, long f)
{
	return word(&cancelled, number, a, b, c, d, e, f);
}

static long point(int kind, long number, long a, long b, long c, long d, long e, long f)
{
	return (kind ? by_bits : by_word)(number, a, b, c, d, e, f);
}

#define POINT(kind, number, ...) POINT_(kind, number, ##__VA_ARGS__, 0, 0, 0, 0, 0, 0)
#define POINT_(kind, number, a, b, c, d, e, f, ...) \
	point(kind, number, (long)(a), (long)(b), (long)(c), (long)(d), (long)(e), (long)(f))

static unsigned long rip_of(void *context)
{
	return ((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
}

// What C libraries do: glibc unwinds the thread from here, musl has it end itself.
static void cancel_here(int number, siginfo_t *information, void *context)
{
	(void)number;
	(void)information;
	unsigned long rip = rip_of(context);

	if (rip >= (unsigned long)word && rip < (unsigned long)word_end)
		((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP] = (long)word_cancelled;
	else if (rip >= (unsigned long)bits && rip < (unsigned long)bits_end)
		end_thread();
}

static void feed(int number, siginfo_t *information, void *context)
{
	(void)number;
	(void)information;
	interrupted = rip_of(context);
	handled++;
	EQUAL(RAW(SYS_sendto, sockets[1], "x", 1), 1);
}

static void note(int number, siginfo_t *information, void *context)
{
	(void)number;
	(void)information;
	interrupted = rip_of(context);
	handled++;
}

static void leave(int number)
{
	(void)number;
	handled++;
	siglongjmp(away, 1);
}

static void soon(void *handler, int flags)
{
	struct sigaction action = { .sa_sigaction = (void (*)(int, siginfo_t *, void *))handler, .sa_flags = flags };
	struct itimerval timer = { { 0, 0 }, { 0, 60000 } };

	handled = 0;
	EQUAL(sigaction(SIGALRM, &action, NULL), 0);
	EQUAL(setitimer(ITIMER_REAL, &timer, NULL), 0);
}

static void arguments_arrive(int kind)
{
	char bytes[4] = "abc";
	struct iovec vector = { bytes, 2 };
	int zero = open("/dev/zero", O_RDONLY);

	EQUAL(POINT(kind, SYS_preadv2, zero, &vector, 1, -1, -1, 0), 2);
	EQUAL(memcmp(bytes, "\0\0c", 4), 0);
	EQUAL(POINT(kind, SYS_preadv2, zero, &vector, 1, -1, -1, 0x40000000), -EOPNOTSUPP);
	EQUAL(POINT(kind, SYS_preadv2, -1, &vector, 1, 0, 0, 0), -EBADF);
	EQUAL(POINT(kind, 600), -ENOSYS);
	close(zero);
}

static void calls_are_interrupted(int kind)
{
	unsigned long end = (unsigned long)(kind ? bits_end : word_end);
	char byte = 0;

	soon(feed, SA_RESTART | SA_SIGINFO);
	EQUAL(POINT(kind, SYS_recvfrom, sockets[0], &byte, 1), 1);
	EQUAL(byte, 'x');
	EQUAL(handled, 1);
	EQUAL(interrupted, end - 2);
	soon(note, SA_SIGINFO);
	EQUAL(POINT(kind, SYS_pause), -EINTR);
	EQUAL(handled, 1);
	EQUAL(interrupted, end);
	soon(leave, SA_RESTART);
	if (!sigsetjmp(away, 1)) {
		struct msghdr message = { 0 };

		POINT(kind, SYS_recvmsg, sockets[0], &message);
		CHECK(!"it is left");
	}
	EQUAL(handled, 1);
}

static void clean(void *pointer)
{
	volatile int *file = pointer;

	cleaned++;
	if (*file >= 0)
		RAW(SYS_close, *file);
}

static volatile int opened;

static void *body(void *how)
{
	long kind = (long)how & 1;
	char byte;

	cancelled = 0;
	opened = -1;
	theirs = &cancelled;
	pthread_cleanup_push(clean, (void *)&opened);
	sem_post(&begun);
	for (;;) {
		if (((long)how & 2) == 0) {
			POINT(kind, SYS_recvfrom, sockets[0], &byte, 1);
			continue;
		}
		opened = POINT(kind, SYS_openat, AT_FDCWD, "/dev/null", O_RDONLY | O_CLOEXEC);
		int file = opened;
		opened = -1;
		RAW(SYS_close, file);
		POINT(kind, SYS_getpgid);
	}
	pthread_cleanup_pop(0);
	return NULL;
}

static int waits(pid_t tid)
{
	char path[64], text[64] = "";
	int file;

	snprintf(path, sizeof path, "/proc/self/task/%d/syscall", tid);
	file = open(path, O_RDONLY);
	CHECK(file >= 0);
	CHECK(read(file, text, sizeof text - 1) > 0);
	close(file);
	return atoi(text) == SYS_recvfrom;
}

static pid_t tid_of(pthread_t thread)
{
	// A thread's clock names the thread (include/linux/posix-timers.h).
	clockid_t clock;

	EQUAL(pthread_getcpuclockid(thread, &clock), 0);
	return ~(clock >> 3);
}

// `how`: the kind, and 2 for a loop of calls that do not wait.
static void cancel(long how, int spins)
{
	pthread_t thread;
	void *result;

	cleaned = 0;
	EQUAL(pthread_create(&thread, NULL, body, (void *)how), 0);
	while (sem_wait(&begun))
		;
	if (!(how & 2))
		while (!waits(tid_of(thread)))
			;
	for (volatile int i = spins; i > 0; i--)
		;
	__atomic_fetch_or(theirs, CANCELLED, __ATOMIC_SEQ_CST);
	EQUAL(pthread_kill(thread, SIGUSR2), 0);
	EQUAL(pthread_join(thread, &result), 0);
	CHECK(result == PTHREAD_CANCELED);
	EQUAL(cleaned, 1);
}

static int lowest(void)
{
	int file = dup(0);

	close(file);
	return file;
}

// bridged KIND NAME: makes a directory, and says what the result was.
static int make(int kind, const char *name)
{
	long result = POINT(kind, SYS_mkdir, name, 0777);

	printf("%ld\n", result);
	return result != 0;
}

int main(int count, char **words)
{
	if (count > 2)
		return make(atoi(words[1]), words[2]);
	struct sigaction action = { .sa_sigaction = cancel_here, .sa_flags = SA_RESTART | SA_SIGINFO };
	int rounds = count > 1 ? atoi(words[1]) : 2000, random = 1;

	EQUAL(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets), 0);
	EQUAL(sigaction(SIGUSR2, &action, NULL), 0);
	sem_init(&begun, 0, 0);
	for (int kind = 0; kind < 2; kind++) {
		arguments_arrive(kind);
		calls_are_interrupted(kind);
		for (int i = 0; i < 50; i++)
			cancel(kind, 0);
	}
	int before = lowest();
	for (int round = 0; round < rounds; round++) {
		random = random * 1103515245 + 12345;
		cancel(2 | (round & 1), random >> 16 & 0xfff);
	}
	EQUAL(lowest(), before);
	return faults != 0;
}
