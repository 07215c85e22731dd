// SPDX-License-Identifier: MIT OR Apache-2.0
// Static tracepoints of ring3/trace.h with arguments of every kind. It is C and C++ alike.
//
// Of each line "EVENT N" of input it reports the event N times, for 0 to N - 1, and prints N, or for "enabled" what
// RING3_TRACE_ENABLED says. With -DLIBRARY it is a library with the same functions.
#include <ring3/trace.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum state { SUNK = -1, NEW, SHIPPED };

struct order {
	int id;
	unsigned long cents;
	short shelf;
	unsigned short row;
	signed char mood;
	unsigned char boxes;
	bool paid;
	char label[8];
	const char *customer;
	const char *counted;
	size_t counted_bytes;
	float weight;
	double price;
	enum state state;
	const struct order *next;
};

static long handled;

#define ALONE __attribute__((noinline))

ALONE void nothing(void)
{
	RING3_TRACE(shop, nothing);
}

ALONE void integers(const struct order *o, int round)
{
	RING3_TRACE(shop, integers, o->id, o->shelf, o->row, o->mood, o->boxes, o->paid);
	RING3_TRACE(shop, longs, RING3_FIELD(cents, o->cents), round, round % 3 | 8, -7, 18446744073709551615ul, o->next);
	RING3_TRACE(shop, twelve, 1, o->id, 3, round, 5, o->cents, 7, o->paid, 9, o->row, 11, handled);
	handled++;
}

ALONE void texts(const struct order *o, int round)
{
	char local[8];

	local[0] = (char)('a' + round);
	local[1] = 0;
	RING3_TRACE(shop, texts, RING3_FIELD(label, o->label), RING3_FIELD(customer, o->customer), "a \"b\", %d {c|d}", local,
		    RING3_FIELD(counted, o->counted), RING3_LENGTH(o->counted_bytes));
}

ALONE void numbers(const struct order *o, float f, double d)
{
	RING3_TRACE(shop, numbers, o->weight, o->price, f, d, 0.5);
}

static long hidden(void)
{
	return handled;
}

ALONE void pointers(const struct order *o, enum state state)
{
	RING3_TRACE(shop, pointers, RING3_TYPED(order, const struct order *, o), o->next, hidden, state,
		    RING3_TYPED(as_int, int, o->state), &handled);
}

// In two callers, with different places.
static inline __attribute__((always_inline)) void shipped(long number, int last)
{
	RING3_TRACE(shop, shipped, number, last);
}

ALONE long ship(long from, long to)
{
	long shipments = 0;

	for (; from < to; from++) {
		shipped(from, from + 1 == to);
		shipments += from ^ to;
	}
	shipped(-1, 2);
	return shipments;
}

ALONE int guarded(const struct order *o)
{
	if (RING3_TRACE_ENABLED(shop, guarded))
		RING3_TRACE(shop, guarded, RING3_FIELD(length, strlen(o->customer)));
	return RING3_TRACE_ENABLED(shop, guarded);
}

#ifdef __cplusplus

enum class color : unsigned char { red, green };

namespace inner {

template<class T> struct box {
	T value;
	ALONE void trace() const
	{
		RING3_TRACE(shop, box, value, RING3_FIELD(bytes, sizeof(T)));
	}
};

}

ALONE void classes()
{
	inner::box<int>{ -1 }.trace();
	inner::box<unsigned char>{ 2 }.trace();
	inner::box<const char *>{ "three" }.trace();
	RING3_TRACE(shop, classes, color::green, nullptr, L'x');
}

#endif

#ifndef LIBRARY

int main(void)
{
	struct order order = { 41, 1ul << 40, -3, 65000, -5, 200, true, "shelf", "Ada", "countedX", 7, 1.5f, 2.25, SHIPPED, NULL };
	char line[256], word[256];
	int rounds;

	order.next = &order;
	setvbuf(stdout, NULL, _IOLBF, 0);
	puts("ready");
	while (fgets(line, sizeof(line), stdin)) {
		if (sscanf(line, "%255s %d", word, &rounds) != 2)
			continue;
		for (int i = 0; i < rounds; i++) {
			if (!strcmp(word, "nothing"))
				nothing();
			else if (!strcmp(word, "integers"))
				integers(&order, i);
			else if (!strcmp(word, "texts"))
				texts(&order, i);
			else if (!strcmp(word, "numbers"))
				numbers(&order, (float)i, i / 4.0);
			else if (!strcmp(word, "pointers"))
				pointers(&order, SUNK);
			else if (!strcmp(word, "ship"))
				ship(i, i + 2);
			else if (!strcmp(word, "guarded"))
				guarded(&order);
#ifdef __cplusplus
			else if (!strcmp(word, "classes"))
				classes();
#endif
			order.id++;
		}
		printf("%d\n", strcmp(word, "enabled") ? rounds : guarded(&order));
	}
	return 0;
}

#endif
