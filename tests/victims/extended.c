// The host of the tests of extensions: calls its functions as it is told, line by line, and prints what they return.
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>
#include "extended.h"

#define ENTRY __attribute__((noinline, noipa, visibility("default")))

static struct peer a_peer = { .port = 80, .secret = 4242, .key = "key-key" };
static char uri[] = "/index", body[] = "body of it";
static long numbers[3] = { 1, 2, 3 };
static struct pair a_pair = { .data = uri, .length = 6 };
static struct tagged a_tag = { .kind = 1, .value.number = 5 };
static struct request a_request = {
	.magic = 77, .method = 7, .secret = 1234, .uri = { 6, uri }, .body = { 10, body }, .peer = &a_peer, .owner = &a_peer,
	.flags = 5, .mode = 9, .status = 200, .codes = { 10, 20, 30, 40 }, .nested = { { 1, 2 }, { 3, 4 } },
	.value = { .number = 5 }, .number = { .whole = 6 }, .fixed = 8, .kind = 9, .port = 10, .pair = &a_pair, .name = "a name",
	.label = "label", .count = 3, .numbers = numbers,
	.tagged = { .kind = 1, .value.number = 30 }, .tag = &a_tag, .choice = { .which = -1, .of.a = 6 },
};

long load = 100;
int limit = 50;
struct peer *current = &a_peer;
long secret_global = 987654321;
// What functions that extensions call return, and how often they have been called.
static long told, calls;
static void *nowhere;
static sigjmp_buf back;

ENTRY long serve(struct request *r, int flags, const char *why)
{
	__asm__ volatile("" : : "r"(r), "r"(flags), "r"(why) : "memory");
	return 1000 + flags;
}
ENTRY int serve_int(struct request *r, int number)
{
	__asm__ volatile("" : : "r"(r) : "memory");
	return number + 1;
}
ENTRY unsigned char serve_byte(struct request *r, unsigned char number)
{
	__asm__ volatile("" : : "r"(r) : "memory");
	return number + 1;
}
ENTRY bool serve_bool(struct request *r)
{
	__asm__ volatile("" : : : "memory");
	return r != NULL;
}
ENTRY struct request *serve_pointer(struct request *r)
{
	__asm__ volatile("" : : : "memory");
	return r;
}
// These get numbers in vector registers of which their types do not tell. (An entry that has such parameters is refused.)
ENTRY long serve_floats(struct request *r)
{
	double a, b;
	long result;

	__asm__ volatile("movsd %%xmm0, %0; movsd %%xmm1, %1" : "=m"(a), "=m"(b) : "r"(r) : "memory");
	result = (long)(a * 100 + b * 10);
	return result;
}
#define CALL_WITH(LOAD, FUNCTION)                                                                                     \
	long result;                                                                                                  \
	__asm__ volatile("mov %%rsp, %%rbx; sub $128, %%rsp; and $-64, %%rsp; " LOAD " call " #FUNCTION "; mov %%rbx, %%rsp"    \
			 : "=a"(result)                                                                               \
			 : "D"(&a_request), "S"(left), "d"(right)                                                     \
			 : "rbx", "rcx", "r8", "r9", "r10", "r11", "memory", "cc", "xmm0", "xmm1");                    \
	return result
static double left[8] = { 1, 2, 3, 4, 5, 6, 7, 8 }, right[8] = { 2, 1, 1, 1, 1, 1, 1, 1 };

static __attribute__((noinline)) long call_floats(void)
{
	CALL_WITH("movsd (%%rsi), %%xmm0; movsd (%%rdx), %%xmm1;", serve_floats);
}
__attribute__((target("avx"))) ENTRY long serve_wide(struct request *r)
{
	double a[4], b[4];

	__asm__ volatile("vmovupd %%ymm0, %0; vmovupd %%ymm1, %1" : "=m"(a), "=m"(b) : "r"(r) : "memory");
	return (long)(a[0] + b[0] + (a[1] + b[1]) * 10 + (a[2] + b[2]) * 100 + (a[3] + b[3]) * 1000);
}
static __attribute__((noinline)) long call_wide(void)
{
	CALL_WITH("vmovupd (%%rsi), %%ymm0; vmovupd (%%rdx), %%ymm1;", serve_wide);
}
// (And in a mask, and in a register that only AVX-512 has.)
__attribute__((target("avx512f,avx512bw"))) ENTRY long serve_widest(struct request *r)
{
	double a[8], b[8];
	long mask;

	__asm__ volatile("vmovupd %%zmm0, %0; vmovupd %%zmm17, %1; kmovq %%k1, %2"
			 : "=m"(a), "=m"(b), "=r"(mask)
			 : "r"(r)
			 : "memory");
	return (long)(a[0] + b[1] + a[3] * 100 + b[7] * 1000 + a[7] * 10000) + mask;
}
static __attribute__((noinline)) long call_widest(void)
{
	CALL_WITH("vmovupd (%%rsi), %%zmm0; vmovupd (%%rdx), %%zmm17; mov $100000, %%ecx; kmovq %%rcx, %%k1;", serve_widest);
}
ENTRY long other(struct request *r)
{
	__asm__ volatile("" : : "r"(r) : "memory");
	return 5;
}

// What extensions call.
ENTRY int answer(struct request *r, int status)
{
	calls++;
	r->status = status;
	return 0;
}
ENTRY long twice(long number)
{
	calls++;
	return 2 * number;
}
ENTRY int positive(struct request *r)
{
	__asm__ volatile("" : : "r"(r) : "memory");
	calls++;
	return told;
}
ENTRY unsigned char a_byte(long number)
{
	calls++;
	// (What is above the byte is anything.)
	long result = number;
	unsigned char byte;
	__asm__ volatile("mov %1, %%rax\n\tor $0x5500, %%rax\n\tmovb %%al, %0" : "=r"(byte) : "r"(result) : "rax");
	return byte;
}
ENTRY signed char a_signed_byte(long number)
{
	calls++;
	return number;
}
ENTRY struct request *find(unsigned int id)
{
	calls++;
	return id == 1 ? &a_request : NULL;
}
ENTRY struct request *dangling(void)
{
	calls++;
	return nowhere;
}
ENTRY void forbidden(struct request *r)
{
	r->magic = 0;
}
ENTRY void undeclared(struct request *r)
{
	r->magic = 0;
}
ENTRY void again(struct request *r)
{
	calls++;
	serve(r, 2, "again");
}
ENTRY void leap(struct request *r)
{
	__asm__ volatile("" : : "r"(r) : "memory");
	calls++;
	siglongjmp(back, 1);
}
ENTRY void doze(struct request *r)
{
	__asm__ volatile("" : : "r"(r) : "memory");
	calls++;
	sleep(2);
}
ENTRY void nap(struct request *r)
{
	__asm__ volatile("" : : "r"(r) : "memory");
	calls++;
	usleep(2000);
}
ENTRY void forks(struct request *r)
{
	__asm__ volatile("" : : "r"(r) : "memory");
	calls++;
	pid_t child = fork();
	int status;

	if (child == 0)
		told = 1;
	else
		waitpid(child, &status, 0), calls += 100 * WEXITSTATUS(status);
}
ENTRY void ends_thread(struct request *r)
{
	__asm__ volatile("" : : "r"(r) : "memory");
	pthread_exit((void *)5);
}
ENTRY void use_peer(struct peer *peer)
{
	calls++;
	peer->port++;
}
// (extended_twin.c has another one.)
__attribute__((noinline, noipa, used)) static long twin(long number)
{
	return number;
}
ENTRY void maybe(struct request *r)
{
	__asm__ volatile("" : : "r"(r) : "memory");
	calls++;
}
#define CLEAR_XMM                                                                                                     \
	"pxor %%xmm0, %%xmm0; pxor %%xmm1, %%xmm1; pxor %%xmm2, %%xmm2; pxor %%xmm3, %%xmm3; pxor %%xmm4, %%xmm4;"    \
	"pxor %%xmm5, %%xmm5; pxor %%xmm6, %%xmm6; pxor %%xmm7, %%xmm7; pxor %%xmm8, %%xmm8; pxor %%xmm15, %%xmm15;"
ENTRY void scribble(struct request *r)
{
	__asm__ volatile("" : : "r"(r) : "memory");
	calls++;
	__asm__ volatile(CLEAR_XMM : : : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm15");
	if (__builtin_cpu_supports("avx"))
		__asm__ volatile("vzeroall" : : : "xmm0");
	if (__builtin_cpu_supports("avx512f"))
		__asm__ volatile("vpxorq %%zmm0, %%zmm0, %%zmm0; vpxorq %%zmm1, %%zmm1, %%zmm1; vpxorq %%zmm17, %%zmm17, %%zmm17; kxorw %%k1, %%k1, %%k1" : : : "xmm0");
}

static volatile long handled;

static void on_signal(int signal)
{
	(void)signal;
	handled += serve(&a_request, 3, "signal") != 0;
}

struct job {
	long rounds;
	long wrong;
};

static volatile long expected_low, expected_high;

static void *work(void *given)
{
	struct job *job = given;

	for (long i = 0; i < job->rounds; i++) {
		long got = serve(&a_request, 1, "thread");
		job->wrong += got != 1001 && (got < expected_low || got > expected_high);
	}
	return NULL;
}

static long threads(int count, long rounds)
{
	pthread_t ids[16];
	struct job jobs[16];
	long wrong = 0;

	for (int i = 0; i < count; i++) {
		jobs[i] = (struct job){ .rounds = rounds };
		pthread_create(&ids[i], NULL, work, &jobs[i]);
	}
	for (int i = 0; i < count; i++) {
		pthread_join(ids[i], NULL);
		wrong += jobs[i].wrong;
	}
	return wrong;
}

static void *one(void *unused)
{
	(void)unused;
	return (void *)serve(&a_request, 1, "one");
}

// Signals while the function is called: how many calls had another result than expected.
static long storm(int seconds)
{
	struct itimerval often = { { 0, 50 }, { 0, 50 } }, never = { { 0, 0 }, { 0, 0 } };
	struct timespec start, now;
	long wrong = 0;

	signal(SIGALRM, on_signal);
	setitimer(ITIMER_REAL, &often, NULL);
	clock_gettime(CLOCK_MONOTONIC, &start);
	do {
		for (int i = 0; i < 1000; i++) {
			long got = serve(&a_request, 1, "storm");
			wrong += got != 1001 && (got < expected_low || got > expected_high);
		}
		clock_gettime(CLOCK_MONOTONIC, &now);
	} while (now.tv_sec < start.tv_sec + seconds);
	setitimer(ITIMER_REAL, &never, NULL);
	return wrong;
}

static volatile sig_atomic_t leaping;

static void on_leap(int signal)
{
	(void)signal;
	if (leaping)
		siglongjmp(back, 1);
}

// As `storm`, but the handler leaves what it has interrupted.
static long leaps(int seconds)
{
	struct itimerval often = { { 0, 70 }, { 0, 70 } }, never = { { 0, 0 }, { 0, 0 } };
	struct timespec start, now;
	static long wrong, left;

	wrong = left = 0;
	signal(SIGALRM, on_leap);
	setitimer(ITIMER_REAL, &often, NULL);
	clock_gettime(CLOCK_MONOTONIC, &start);
	do {
		if (sigsetjmp(back, 1)) {
			left++;
		} else {
			leaping = 1;
			for (int i = 0; i < 1000; i++) {
				long got = serve(&a_request, 1, "leaps");
				wrong += got != 1001 && (got < expected_low || got > expected_high);
			}
		}
		leaping = 0;
		clock_gettime(CLOCK_MONOTONIC, &now);
	} while (now.tv_sec < start.tv_sec + seconds);
	setitimer(ITIMER_REAL, &never, NULL);
	return left > 100 ? wrong : -1;
}

static sigjmp_buf refused;
static volatile int refusal;

static void on_refusal(int signal, siginfo_t *info, void *context)
{
	(void)signal, (void)context;
	refusal = info->si_code;
	siglongjmp(refused, 1);
}

/* Overwrites a word of memory; 0, or the si_code with which that was refused. */
static int write_word(long *word)
{
	struct sigaction action = { .sa_sigaction = on_refusal, .sa_flags = SA_SIGINFO }, before;

	refusal = 0;
	sigaction(SIGSEGV, &action, &before);
	if (!sigsetjmp(refused, 1))
		*(volatile long *)word = 77;
	sigaction(SIGSEGV, &before, NULL);
	return refusal;
}

static void show(void)
{
	printf("%s %s %s %u %ld %ld %ld %d %s %ld %d %u %u\n", uri, body, a_request.name, a_request.status, load, calls,
	       a_request.magic, a_request.secret, a_peer.key, secret_global, a_request.method, a_peer.port, a_request.done);
}

int main(int count, char **arguments)
{
	char line[128];

	(void)arguments;
	if (count > 1)
		return serve(&a_request, 1, "argument") == 1001 ? 1 : 2;
	long a = 0, b = 0;

	setvbuf(stdout, NULL, _IOLBF, 0);
	nowhere = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	munmap(nowhere, 4096);
	a_request.next = nowhere;
	puts("ready");
	while (fgets(line, sizeof(line), stdin)) {
		char word[32] = "";

		a = b = 0;
		sscanf(line, "%31s %ld %ld", word, &a, &b);
		if (!strcmp(word, "serve"))
			printf("%ld\n", serve(&a_request, a, "line"));
		else if (!strcmp(word, "empty")) {
			// A text that is nowhere, of so many bytes.
			a_request.uri = (typeof(a_request.uri)){ a, NULL };
			printf("%ld\n", serve(&a_request, 1, "empty"));
			a_request.uri = (typeof(a_request.uri)){ 6, uri };
		} else if (!strcmp(word, "children"))
			puts(waitpid(-1, NULL, WNOHANG) < 0 && errno == ECHILD ? "none" : "some");
		else if (!strcmp(word, "null"))
			printf("%ld\n", serve(NULL, a, "line"));
		else if (!strcmp(word, "many")) {
			long sum = 0;
			for (long i = 0; i < a; i++)
				sum += serve(&a_request, 1, "many") == 1001;
			printf("%ld\n", sum);
		} else if (!strcmp(word, "int"))
			printf("%d\n", serve_int(&a_request, a));
		else if (!strcmp(word, "byte"))
			printf("%d\n", serve_byte(&a_request, a));
		else if (!strcmp(word, "bool"))
			printf("%d\n", serve_bool(&a_request));
		else if (!strcmp(word, "pointer"))
			printf("%s\n", serve_pointer(&a_request) == &a_request ? "it" : "null");
		else if (!strcmp(word, "floats"))
			printf("%ld\n", call_floats());
		else if (!strcmp(word, "wide")) {
			if (!__builtin_cpu_supports("avx"))
				puts("none");
			else
				printf("%ld\n", call_wide());
		} else if (!strcmp(word, "widest")) {
			if (!__builtin_cpu_supports("avx512bw"))
				puts("none");
			else
				printf("%ld\n", call_widest());
		} else if (!strcmp(word, "leap")) {
			volatile long leaps = 0;
			for (volatile long i = 0; i < a; i++)
				if (sigsetjmp(back, 1))
					leaps++;
				else
					serve(&a_request, 1, "leap");
			printf("%ld\n", leaps);
		} else if (!strcmp(word, "expect"))
			expected_low = a, expected_high = b, puts("ok");
		else if (!strcmp(word, "executes")) {
			// (The new program answers the line that it finds.)
			pid_t child = fork();
			if (child == 0) {
				execl("/proc/self/exe", "extended", "serve", NULL);
				_exit(127);
			}
			int status;
			waitpid(child, &status, 0);
			printf("%d\n", WEXITSTATUS(status));
		} else if (!strcmp(word, "threads"))
			printf("%ld\n", threads(a, b));
		else if (!strcmp(word, "thread")) {
			pthread_t id;
			void *result;
			pthread_create(&id, NULL, one, NULL);
			pthread_join(id, &result);
			printf("%ld\n", (long)result);
		} else if (!strcmp(word, "storm"))
			printf("%ld\n", storm(a));
		else if (!strcmp(word, "leaps"))
			printf("%ld\n", leaps(a));
		else if (!strcmp(word, "fork")) {
			pid_t child = fork();
			int status;

			if (child == 0)
				_exit(serve(&a_request, 1, "child") == 1001 ? 1 : 2);
			waitpid(child, &status, 0);
			printf("%d\n", WEXITSTATUS(status));
		} else if (!strcmp(word, "forks")) {
			long got = serve(&a_request, 1, "forks");
			if (told)
				_exit(got == 1001 ? 3 : 4);
			printf("%ld\n", got);
		} else if (!strcmp(word, "tag")) {
			a_request.tagged.kind = a;
			if (a == 1)
				a_request.tagged.value.number = b;
			else if (a == 2)
				a_request.tagged.value.peer = &a_peer;
			else
				a_request.tagged.value.text = (struct text){ .length = b, .data = body };
			puts("ok");
		} else if (!strcmp(word, "tell"))
			told = a, puts("ok");
		else if (!strcmp(word, "poke")) {
			if (a == 0)
				a_request.uri.length = b;
			else if (a == 1)
				a_request.uri.data = b ? uri : NULL;
			else
				a_request.body.data = b ? body : nowhere;
			puts("ok");
		} else if (!strcmp(word, "write"))
			printf("%d\n", write_word((long *)a));
		else if (!strcmp(word, "show"))
			show();
		else
			puts("what?");
	}
	return 0;
}
