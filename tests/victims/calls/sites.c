// SPDX-License-Identifier: MIT OR Apache-2.0
// System calls at awkward places (sites.S), with all registers known before and looked at after.
#include "check.h"
#include <cpuid.h>
#include <stdint.h>

struct registers {
	uint64_t rax, rbx, rcx, rdx, rsi, rdi, rbp, r8, r9, r10, r11, r12, r13, r14, r15, rsp, flags, mxcsr;
	double x87;
	uint64_t pad[13];
	uint8_t vectors[16][32];
};
_Static_assert(__builtin_offsetof(struct registers, vectors) == 256, "as sites.S has it");

struct site {
	void *start, *end;
	const char *text;
};

extern const struct site sites[];
extern uint64_t avx;
extern char two[], two_end[], eight[], eight_end[], table_with_calls[];
long returning(long number), repeated(long number, long first, long second, long rounds), number_with_a_call(void);
long pass(const struct registers *before, struct registers *after, const void *site);

#define CARRY 1
#define PARITY 4
#define AUXILIARY 16
#define ZERO 64
#define SIGN 128
#define DIRECTION 1024
#define OVERFLOW 2048
#define SHOWN (CARRY | PARITY | AUXILIARY | ZERO | SIGN | DIRECTION | OVERFLOW)

static uint8_t stack[8192] __attribute__((aligned(64)));

static struct registers fresh(long number, const long *arguments)
{
	static uint64_t seed = 88172645463325252ull;
	struct registers registers;
	uint64_t *words = (uint64_t *)&registers;

	for (unsigned i = 0; i < sizeof(registers) / 8; i++) {
		seed ^= seed << 13;
		seed ^= seed >> 7;
		seed ^= seed << 17;
		words[i] = seed;
	}
	registers.rax = number;
	registers.rdi = arguments[0];
	registers.rsi = arguments[1];
	registers.rdx = arguments[2];
	registers.rsp = (uint64_t)&stack[sizeof(stack) - 64];
	registers.flags = 0x202;
	return registers;
}

static const char *place;

static void same(const char *name, uint64_t left, uint64_t right)
{
	if (left != right) {
		dprintf(2, "%s: %s was %#lx, is %#lx\n", place, name, right, left);
		faults++;
	}
}

// Everything but rax, which is the result, and rcx and r11, which are what the instruction makes of them.
static void compare(const struct registers *after, const struct registers *before, const void *end)
{
	uint32_t mxcsr;

#define SAME(name) same(#name, after->name, before->name)
	SAME(rbx); SAME(rdx); SAME(rsi); SAME(rdi); SAME(rbp); SAME(rsp);
	SAME(r8); SAME(r9); SAME(r10); SAME(r12); SAME(r13); SAME(r14); SAME(r15);
	same("flags", after->flags & SHOWN, before->flags & SHOWN);
	same("r11 (flags)", after->r11 & SHOWN, before->flags & SHOWN);
	same("rcx (where it goes on)", after->rcx, (uint64_t)end);
	__asm__("stmxcsr %0" : "=m"(mxcsr));
	same("mxcsr", (uint32_t)after->mxcsr, mxcsr);
	same("x87", after->x87 == 3.14159265358979323846, 1);
	for (int i = 0; i < 16; i++)
		if (memcmp(after->vectors[i], before->vectors[i], avx ? 32 : 16)) {
			dprintf(2, "%s: vector register %d has changed\n", place, i);
			faults++;
		}
}

static long call_at(const void *site, const void *end, long number, const long *arguments, uint64_t flags)
{
	struct registers before = fresh(number, arguments), after;
	long broken;

	before.flags |= flags;
	broken = pass(&before, &after, site);
	same("words of the red zone broken", broken, 0);
	compare(&after, &before, end);
	return after.rax;
}

// A number and what the kernel makes of it.
struct number {
	long number, result;
};

int main(void)
{
	const long nothing[3] = { 0, 0, 0 };
	long self = getpid();
	unsigned a, b, c = 0, d;
	// The upper half of rax does not count.
	const struct number numbers[] = {
		{ 39, self },
		{ 0x123456700000027, self },
		{ (long)0xffffffff00000027, self },
		{ 512, -ENOSYS },
		{ 600, -ENOSYS },
		{ 0x7fffffff, -ENOSYS },
		{ 0xdead0027, -ENOSYS },
		{ -1, -ENOSYS },
		{ 0xffffffff, -ENOSYS },
		{ -38, -ENOSYS },
		{ -4096, -ENOSYS },
	};
	const uint64_t flags[] = { 0, CARRY, ZERO | PARITY, SIGN | OVERFLOW, AUXILIARY, DIRECTION, SHOWN };

	avx = __get_cpuid(1, &a, &b, &c, &d) && (c & bit_OSXSAVE) && (c & bit_AVX);
	// Each twice and more: what a first use finds is there in the second.
	for (int round = 0; round < 3; round++)
		for (const struct site *site = sites; site->start; site++) {
			place = site->text;
			for (unsigned i = 0; i < sizeof(numbers) / sizeof(*numbers); i++)
				EQUAL(call_at(site->start, site->end, numbers[i].number, nothing, 0), numbers[i].result);
			for (unsigned i = 0; i < sizeof(flags) / sizeof(*flags); i++)
				EQUAL(call_at(site->start, site->end, SYS_getppid, nothing, flags[i]), getppid());
		}
	// lseek to 39 gives 39, which is the number of getpid.
	FILE *file = tmpfile();
	const long to[3] = { fileno(file), 39, SEEK_SET };
	place = "two at once";
	for (int round = 0; round < 3; round++)
		EQUAL(call_at(two, two_end, SYS_lseek, to, 0), self);
	// lseek to 8 gives lseek's own number, so that it goes on for ever.
	const long eighth[3] = { fileno(file), 8, SEEK_SET };
	place = "eight at once";
	for (int round = 0; round < 3; round++)
		EQUAL(call_at(eight, eight_end, SYS_lseek, eighth, 0), 8);
	for (int round = 0; round < 3; round++)
		EQUAL(repeated(SYS_lseek, fileno(file), SYS_lseek, 1000), SYS_lseek);
	fclose(file);
	EQUAL(returning(SYS_getpid), self);
	place = "the number with a call in it";
	static const uint8_t table[16] = { 0x0f, 0x05, 0x0f, 0x05, 0x90, 0x0f, 0x05, 0xc3,
					   0x48, 0xc7, 0xc0, 0x27, 0x00, 0x0f, 0x05, 0x0f };
	CHECK(!memcmp(table, table_with_calls, sizeof(table)));
	EQUAL(number_with_a_call(), 0x01eb050f);
	return faults != 0;
}
