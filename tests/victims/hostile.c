// On a line of input: overwrites random words of everything of ring3's that is mapped writable here, so many times as it
// says, then prints how many mappings that were. It does not run into its own damage: it calls nothing that is probed.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct range {
	unsigned long *start;
	unsigned long words;
};

__attribute__((noinline, noclone)) unsigned long work(unsigned long x)
{
	__asm__ volatile("" : "+r"(x));
	return x + 1;
}

static unsigned long seed;

static unsigned long noise(void)
{
	seed ^= seed << 13;
	seed ^= seed >> 7;
	seed ^= seed << 17;
	return seed;
}

static unsigned find(struct range *found, unsigned max)
{
	FILE *maps = fopen("/proc/self/maps", "r");
	unsigned long start, end;
	char line[512], mode[8];
	unsigned count = 0;

	while (maps && fgets(line, sizeof(line), maps))
		if (sscanf(line, "%lx-%lx %7s", &start, &end, mode) == 3 && mode[1] == 'w' && count < max &&
		    strstr(line, "memfd:ring3"))
			found[count++] = (struct range){ (unsigned long *)start, (end - start) / sizeof(long) };
	fclose(maps);
	return count;
}

int main(void)
{
	struct range found[256];
	unsigned long times, x = 0;
	char line[64];

	setvbuf(stdout, NULL, _IONBF, 0);
	setvbuf(stdin, NULL, _IONBF, 0);
	for (int i = 0; i < 1000; i++)
		x = work(x);
	puts("ready");
	while (fgets(line, sizeof(line), stdin)) {
		unsigned count = find(found, 256);

		if (sscanf(line, "%lu %lu", &times, &seed) != 2)
			return 1;
		for (unsigned long i = 0; count && i < times; i++) {
			struct range *range = &found[noise() % count];
			// The first pages are used most.
			unsigned long words = noise() % 2 && range->words > 1024 ? 1024 : range->words;
			range->start[noise() % words] = noise() >> (noise() % 64);
		}
		printf("%u\n", count);
	}
	return 0;
}
