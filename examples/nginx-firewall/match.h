// SPDX-License-Identifier: MIT OR Apache-2.0
// Finds forbidden patterns in a text of a request. Included by the extension, and by the C module that it is compared with.
//
// A pattern is named by its window: four of its bytes that innocent texts seldom have. `rules` chooses them. A text is searched in two
// steps:
//   1. The table of pairs says for a pair of bytes whether it is the first, second or third pair of a window. Of each four bytes of
//      a text at least one of these pairs begins at byte 0, 3 or 6 of an aligned word of eight bytes: others are not looked at.
//   2. Where such a pair is, the whole window is looked up, and its pattern compared.
// Case does not matter, and `+` is a space.
//
// The file that includes this one says how a pattern is found (find_pattern), and what ends a loop (BOUNDED).

#define TEXT_MAX 8192
#define PATTERN_MAX 32
#define WINDOW 4
#define PAIRS 4096
#define EACH_BYTE(byte) (0x0101010101010101ull * (byte))
// Letters become lower case, and some other bytes other ones: for the tables of pairs and windows.
#define FOLD 0x20
#define PADDING 0xff
#define NOINLINE __attribute__((noinline))
#define ROUNDS_MAX 2

// A pattern of at most 32 bytes in lower case, the bits that count, and where its window is.
struct pattern {
	__u64 text[PATTERN_MAX / 8];
	__u64 mask[PATTERN_MAX / 8];
	__u64 window_at;
};

// Bit 0, 1 or 2: the first, second or third pair of a window.
struct pairs {
	__u8 of[PAIRS];
};

// A text, and places in it: in memory, because the verifier follows a loop once if it knows nothing of its counters. What follows the
// text's end is PADDING, which is in no pattern.
struct text {
	char bytes[TEXT_MAX + PATTERN_MAX + 8];
	__u64 length;
	__u64 from;
	__u64 to;
};

enum found { INNOCENT, FORBIDDEN_FOUND, ESCAPED };

static inline __u64 pair_index(__u64 pair)
{
	return (pair * 40503 >> 4) & (PAIRS - 1);
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
	window = (__u32)plain(*(const __u32 *)&text->bytes[at]) | (__u32)EACH_BYTE(FOLD);
	pattern = find_pattern(window);
	if (!pattern || pattern->window_at > at)
		return 0;
	at -= pattern->window_at;
	// (Else the compiler subtracts from the address, of which the verifier thinks that it may be below the text.)
	asm volatile("" : "+r"(at));
	if (at >= TEXT_MAX)
		return 0;
	words = (const __u64 *)&text->bytes[at];
	for (int i = 0; i < PATTERN_MAX / 8; i++)
		differs |= (plain(words[i]) & pattern->mask[i]) ^ pattern->text[i];
	return !differs;
}

// Whether a pair at this place, which is one of these pairs of a window, belongs to a forbidden pattern.
static NOINLINE int is_near(const struct text *text, __u64 at, __u64 which)
{
	for (int i = 0; i < 3; i++)
		if ((which >> i & 1) && is_at(text, at - i))
			return 1;
	return 0;
}

// Looks for patterns in a text; ESCAPED: none, but it has a `%`, or bytes below the space.
static NOINLINE int search(struct text *text, const struct pairs *pairs)
{
	__u64 escapes = 0;

	text->from = 0;
	while (BOUNDED) {
		__u64 word, first, second, third, at = text->from;

		if (at >= text->length || at >= TEXT_MAX)
			break;
		text->from = at + 8;
		word = *(const __u64 *)&text->bytes[at];
		escapes |= zero_bytes(word ^ EACH_BYTE('%')) | ((word - EACH_BYTE(' ')) & ~word & EACH_BYTE(0x80));
		word |= EACH_BYTE(FOLD);
		first = pairs->of[pair_index(word & 0xffff)];
		second = pairs->of[pair_index(word >> 24 & 0xffff)];
		third = pairs->of[pair_index(word >> 48)];
		if (!(first | second | third))
			continue;
		if ((first && is_near(text, at, first)) || (second && is_near(text, at + 3, second)) ||
		    (third && is_near(text, at + 6, third)))
			return FORBIDDEN_FOUND;
	}
	return escapes ? ESCAPED : INNOCENT;
}

// Decodes the escapes (%41) of a text. What is below a space becomes one.
static NOINLINE void decode(struct text *text)
{
	__u64 length;

	text->from = text->to = 0;
	while (BOUNDED) {
		__u64 at = text->from, to = text->to;
		char letter;

		if (at >= text->length || at >= TEXT_MAX || to >= TEXT_MAX)
			break;
		text->from = at + 1;
		letter = text->bytes[at];
		if (letter == '%') {
			int high = digit(text->bytes[at + 1]), low = digit(text->bytes[at + 2]);

			if (high >= 0 && low >= 0) {
				letter = high << 4 | low;
				text->from = at + 3;
			}
		}
		if ((unsigned char)letter < ' ')
			letter = ' ';
		text->bytes[to] = letter;
		text->to = to + 1;
	}
	length = text->to;
	if (length > TEXT_MAX)
		return;
	text->length = length;
	__builtin_memset(&text->bytes[length], PADDING, PATTERN_MAX + 8);
}

// Whether a text has a forbidden pattern, also behind escapes of escapes.
static inline int is_forbidden(struct text *text, const struct pairs *pairs)
{
	int found = search(text, pairs);

	for (int round = 0; round < ROUNDS_MAX && found == ESCAPED; round++) {
		decode(text);
		found = search(text, pairs);
	}
	return found == FORBIDDEN_FOUND;
}
