// A target that looks for what other targets left in memory that it shares with them. On a line of input:
//
//   tell TEXT    calls the probed function once
//   find TEXT    prints how often TEXT, given backwards, stands in memory that is shared (never in its own)
//   spoil SEED   makes all of ring3's memory writable that can be made so, by all means that it knows, fills with noise what
//                is writable of the maps and the realm, and prints how many mappings became writable that were not
//   drop         becomes user 65534, without execve
//   end          ends
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

enum { OTHER = 65534, NAME_MAX_BYTES = 512 };

struct range {
	unsigned char *start;
	unsigned long bytes;
	int writable;
	int is_data;
	char name[NAME_MAX_BYTES];
};

__attribute__((noinline, noclone)) void work(const char *text)
{
	static volatile unsigned calls;

	__asm__ volatile("" : : "r"(text) : "memory");
	calls++;
}

static unsigned find(struct range *found, unsigned max)
{
	FILE *maps = fopen("/proc/self/maps", "r");
	unsigned long start, end;
	char line[NAME_MAX_BYTES], mode[8];
	unsigned count = 0;

	while (maps && count < max && fgets(line, sizeof(line), maps)) {
		struct range *range = &found[count];

		if (sscanf(line, "%lx-%lx %7s", &start, &end, mode) != 3 || mode[0] != 'r' || mode[3] != 's')
			continue;
		*range = (struct range){ (unsigned char *)start, end - start, mode[1] == 'w', 0, "" };
		range->is_data = strstr(line, "ring3-map") || strstr(line, "ring3-realm");
		snprintf(range->name, sizeof(range->name), "/proc/self/map_files/%lx-%lx", start, end);
		count++;
	}
	if (maps)
		fclose(maps);
	return count;
}

static unsigned long occurrences(const struct range *found, unsigned count, const char *backwards)
{
	size_t bytes = strlen(backwards);
	unsigned long hits = 0;
	// (Only pages that somebody has used are there.)
	static unsigned char page[4096 + 64];

	for (unsigned i = 0; i < count; i++) {
		for (unsigned long at = 0; at < found[i].bytes; at += 4096) {
			unsigned long left = found[i].bytes - at;
			unsigned long here = left < sizeof(page) ? left : sizeof(page);

			memcpy(page, found[i].start + at, here);
			for (unsigned long from = 0; from < 4096 && from + bytes <= here; from++) {
				size_t same = 0;

				while (same < bytes && page[from + same] == (unsigned char)backwards[bytes - 1 - same])
					same++;
				if (same == bytes) {
					hits++;
					if (getenv("SPY_TELLS")) fprintf(stderr, "%s +%lx\n", found[i].name, at + from);
				}
			}
		}
	}
	return hits;
}

static int open_for_writing(const struct range *range)
{
	int file = open(range->name, O_RDWR);
	void *there;

	if (file < 0)
		return 0;
	there = mmap(NULL, range->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	close(file);
	return there != MAP_FAILED;
}

static unsigned spoil(struct range *found, unsigned count, unsigned long seed)
{
	unsigned became = 0;

	for (unsigned i = 0; i < count; i++) {
		struct range *range = &found[i];

		if (!range->writable && (!mprotect(range->start, range->bytes, PROT_READ | PROT_WRITE) || open_for_writing(range))) {
			if (getenv("SPY_TELLS")) fprintf(stderr, "became writable: %s\n", range->name);
			became++;
		}
	}
	for (unsigned i = 0; i < count; i++) {
		struct range *range = &found[i];
		unsigned long bytes = range->bytes < 1 << 20 ? range->bytes : 1 << 20;

		for (unsigned long at = 0; range->writable && range->is_data && at + 8 <= bytes; at += 8) {
			seed ^= seed << 13;
			seed ^= seed >> 7;
			seed ^= seed << 17;
			*(volatile unsigned long *)(range->start + at) = seed >> (seed & 63);
		}
	}
	return became;
}

int main(void)
{
	static struct range found[512];
	char line[256], word[16], text[128];

	setvbuf(stdout, NULL, _IONBF, 0);
	setvbuf(stdin, NULL, _IONBF, 0);
	puts("ready");
	while (fgets(line, sizeof(line), stdin)) {
		int words = sscanf(line, "%15s %127s", word, text);
		unsigned count;

		if (words < 1 || !strcmp(word, "end"))
			break;
		if (!strcmp(word, "tell")) {
			work(text);
			puts("told");
		} else if (!strcmp(word, "drop")) {
			if (setresgid(OTHER, OTHER, OTHER) || setresuid(OTHER, OTHER, OTHER))
				return 1;
			puts("dropped");
		} else {
			count = find(found, 512);
			if (!strcmp(word, "find"))
				printf("%lu of %u\n", occurrences(found, count, text), count);
			else
				printf("%u of %u\n", spoil(found, count, strtoul(text, NULL, 0)), count);
		}
		memset(line, 0, sizeof(line));
		memset(text, 0, sizeof(text));
	}
	return 0;
}
