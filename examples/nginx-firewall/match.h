// SPDX-License-Identifier: MIT OR Apache-2.0
// Finds forbidden patterns in a text of a request. Included by the extension, and by the C module that it is compared with.
//
// A pattern is named by its window: four of its bytes that innocent texts seldom have. `rules` chooses them. A text is searched in two
// steps:
//   1. The table of triples says for three bytes whether they may be the first or the last of a window. One of them begins at an even
//      place of the text: others are not looked at. An innocent text has few of them, so this step decides what a request costs.
//   2. Where such a triple is, the whole window is looked up, and its pattern compared.
// Case does not matter, and `+` is a space.
//
// The file that includes this one says how a pattern is found (find_pattern), and what ends a loop (BOUNDED).

#define TEXT_MAX 8192
#define PATTERN_MAX 32
#define WINDOW 4
#define TRIPLES 32768
#define EACH_BYTE(byte) (0x0101010101010101ull * (byte))
// Letters become lower case, and some other bytes other ones: for the tables of triples and windows.
#define FOLD 0x20
#define PADDING 0xff
// So much is searched at once.
#define STEP 16
#define NOINLINE __attribute__((noinline))

// A pattern of at most 32 bytes in lower case, the bits that count, and where its window is.
struct pattern {
	__u64 text[PATTERN_MAX / 8];
	__u64 mask[PATTERN_MAX / 8];
	__u64 window_at;
};

// A bit for each hash of three bytes: 1 if they are the first or the last of a window. (Bits, because the table shares the CPU's
// first cache with all that the server does.)
struct triples {
	__u64 bits[TRIPLES / 64];
};

// A text, and places in it: in memory, because the verifier follows a loop once if it knows nothing of its counters. What follows the
// text's end is PADDING, which is in no pattern.
// (They are before the text, in the same page of memory as most of it.)
struct text {
	__u64 length;
	__u64 from;
	__u64 to;
	char bytes[TEXT_MAX + PATTERN_MAX + 8];
};

// (UNFINISHED: a loop was left because it has run too often.)
enum found { INNOCENT, FORBIDDEN_FOUND, ESCAPED, UNFINISHED };

// An index that is computed before it is added to an address: else the verifier would think that it may be below 0.
static inline __u64 known(__u64 index)
{
	asm volatile("" : "+r"(index));
	return index;
}

// (By a pointer: for an array of bytes the compiler would load each byte.)
static inline __u64 word_at(const void *place)
{
	return *(const __u64 *)place;
}

static inline __u32 half_at(const void *place)
{
	return *(const __u32 *)place;
}

static inline void put_word(void *place, __u64 word)
{
	*(__u64 *)place = word;
}

// Of the first three bytes of four. (Their product's high bits depend on all of them.)
static inline __u32 triple_hash(__u32 bytes)
{
	return (bytes << 8) * 10368889u;
}

// Bit 0: that of the table. (What is above is of no use.)
static inline __u64 triple(const struct triples *triples, __u32 folded)
{
	__u32 hash = triple_hash(folded);

	return triples->bits[hash >> 23] >> (hash >> 17 & 63);
}

static inline __u64 zero_bytes(__u64 word)
{
	return ~(((word & EACH_BYTE(0x7f)) + EACH_BYTE(0x7f)) | word | EACH_BYTE(0x7f));
}

// Eight bytes in lower case, and with spaces for `+`.
static inline __u64 plain(__u64 word)
{
	__u64 low = word & EACH_BYTE(0x7f);
	__u64 is_upper = (low + EACH_BYTE(0x80 - 'A')) & ~(low + EACH_BYTE(0x7f - 'Z')) & ~word & EACH_BYTE(0x80);

	word |= is_upper >> 2;
	return word ^ (zero_bytes(word ^ EACH_BYTE('+')) >> 7) * ('+' ^ ' ');
}

static inline int digit(char letter)
{
	if (letter >= '0' && letter <= '9')
		return letter - '0';
	letter |= 0x20;
	if (letter >= 'a' && letter <= 'f')
		return letter - 'a' + 10;
	return -1;
}

// Whether the pattern of the window at this place is there.
static inline int is_at(const struct text *text, __u64 at)
{
	const __u64 *words;
	const struct pattern *pattern;
	__u64 differs = 0;
	__u32 window;

	if (at >= TEXT_MAX)
		return 0;
	window = (__u32)plain(half_at(&text->bytes[at])) | (__u32)EACH_BYTE(FOLD);
	pattern = find_pattern(window);
	if (!pattern || pattern->window_at > at)
		return 0;
	at = known(at - pattern->window_at);
	if (at >= TEXT_MAX)
		return 0;
	words = (const __u64 *)&text->bytes[at];
	for (int i = 0; i < PATTERN_MAX / 8; i++)
		differs |= (plain(words[i]) & pattern->mask[i]) ^ pattern->text[i];
	return !differs;
}

// The bytes that decoding changes: `%`, and what is below the space. (The lowest is right; those above it may be more.)
static inline __u64 escapes_in(__u64 word)
{
	__u64 escape = word ^ EACH_BYTE('%');

	return (((escape - EACH_BYTE(1)) & ~escape) | ((word - EACH_BYTE(' ')) & ~word)) & EACH_BYTE(0x80);
}

// Bit 0: whether the table has a triple at one of the four even places of a word.
static inline __u64 triples_of(const struct triples *triples, __u64 word, __u32 last)
{
	word |= EACH_BYTE(FOLD);
	return triple(triples, word) | triple(triples, word >> 16) | triple(triples, word >> 32) |
	       triple(triples, last | (__u32)EACH_BYTE(FOLD));
}

// Whether one of the windows that have a triple at an even place of STEP bytes belongs to a forbidden pattern that is there.
static NOINLINE int is_near(const struct text *text, const struct triples *triples, __u64 at)
{
	for (int i = -1; i < STEP - 1; i++) {
		__u64 window_at = known(at + i);

		__u32 window;

		if (window_at >= TEXT_MAX)
			continue;
		window = half_at(&text->bytes[window_at]) | (__u32)EACH_BYTE(FOLD);
		if (!(triple(triples, window) & triple(triples, window >> 8) & 1))
			continue;
		if (is_at(text, window_at))
			return 1;
	}
	return 0;
}

// Looks for patterns in a text. ESCAPED: there is something to decode first, if that is wanted.
static NOINLINE int search(struct text *text, const struct triples *triples, __u64 escapes_wanted)
{
	text->from = 0;
	while (BOUNDED) {
		__u64 one, two, at = text->from;
		const char *here;

		if (at >= text->length || at >= TEXT_MAX)
			break;
		text->from = at + STEP;
		here = &text->bytes[at];
		one = word_at(here);
		two = word_at(here + 8);
		if ((escapes_in(one) | escapes_in(two)) & escapes_wanted)
			return ESCAPED;
		if (((triples_of(triples, one, half_at(here + 6)) | triples_of(triples, two, half_at(here + 14))) & 1) &&
		    is_near(text, triples, at))
			return FORBIDDEN_FOUND;
	}
	return text->from < text->length ? UNFINISHED : INNOCENT;
}

// Writes the text without its escapes (%41). What is below a space becomes one. Whether all was written.
static NOINLINE int decode(struct text *text, struct text *into)
{
	__u64 length;

	text->from = text->to = 0;
	while (BOUNDED) {
		__u64 at = text->from, to = text->to, word, escapes, before = 8;
		char letter;

		if (at >= text->length || at >= TEXT_MAX || to >= TEXT_MAX)
			break;
		word = word_at(&text->bytes[at]);
		put_word(&into->bytes[to], word);
		escapes = escapes_in(word);
		if (!escapes) {
			text->from = at + 8;
			text->to = to + 8;
			continue;
		}
		// How many bytes are below the lowest.
		before = ((((escapes & -escapes) - 1) & EACH_BYTE(1)) * EACH_BYTE(1) >> 56) - 1;
		at += before & 7;
		to += before & 7;
		if (at >= TEXT_MAX || to >= TEXT_MAX)
			break;
		letter = text->bytes[at];
		text->from = at + 1;
		text->to = to + 1;
		if (letter == '%') {
			int high = digit(text->bytes[at + 1]), low = digit(text->bytes[at + 2]);

			if (high >= 0 && low >= 0) {
				letter = high << 4 | low;
				text->from = at + 3;
			}
		}
		if ((unsigned char)letter < ' ')
			letter = ' ';
		into->bytes[to] = letter;
	}
	if (text->from < text->length)
		return 0;
	// (Words may reach beyond the end.)
	length = text->to - (text->from - text->length);
	if (length > TEXT_MAX)
		length = TEXT_MAX;
	into->length = length;
	__builtin_memset(&into->bytes[length], PADDING, PATTERN_MAX + 8);
	return 1;
}

// Looks for patterns in a text, also behind escapes of escapes. `other` is room for another text.
static inline int search_all(struct text *text, struct text *other, const struct triples *triples)
{
	int found = search(text, triples, ~0ull);

	if (found == ESCAPED)
		found = decode(text, other) ? search(other, triples, ~0ull) : UNFINISHED;
	if (found == ESCAPED)
		found = decode(other, text) ? search(text, triples, 0) : UNFINISHED;
	return found;
}
