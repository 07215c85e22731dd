// SPDX-License-Identifier: MIT OR Apache-2.0
// Functions with a tracepoint whose arguments the compiler has anyway: their code is the same with RING3_TRACE_OFF, but for a nop.
#include <ring3/trace.h>
#include <stdbool.h>

struct order {
	int id;
	long cents;
	const char *customer;
	double price;
	bool paid;
};

void nothing(void)
{
	RING3_TRACE(shop, nothing);
}

long registers(int a, long b, short c, unsigned char d, bool e, void *f)
{
	RING3_TRACE(shop, registers, a, b, c, d, e, f, 7, -1l, 2.5);
	return b;
}

char *text(char *text)
{
	RING3_TRACE(shop, text, text);
	return text + 1;
}

long used(const struct order *o)
{
	long cents = o->cents;

	RING3_TRACE(shop, used, o, cents);
	return cents + 2;
}

long computed(long a, long b)
{
	long sum = a * b;

	RING3_TRACE(shop, computed, a, RING3_FIELD(sum, sum));
	return sum;
}

#ifdef GCC

// In memory: gcc needs no register for it.
long in_memory(const struct order *o, const long *table, long at)
{
	RING3_TRACE(shop, in_memory, o->id, o->cents, o->price, o->paid, table[at], table[at + 5], (void *)o->customer);
	return at;
}

long twelve(const struct order *o)
{
	RING3_TRACE(shop, twelve, o->id, o->cents, o->price, o->paid, o->id, o->cents, o->price, o->paid, o->id, o->cents, o->price, 12);
	return 0;
}

static long total;

void of_static_storage(void)
{
	RING3_TRACE(shop, of_static_storage, total);
	total++;
}

#endif

#ifdef GUARDED

long costly(void);

long guarded(long value)
{
	if (RING3_TRACE_ENABLED(shop, guarded))
		RING3_TRACE(shop, guarded, costly());
	return value;
}

#endif
