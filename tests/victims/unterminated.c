// Calls chdir with texts of 1 to 4200 bytes that end in unreadable memory.
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE_BYTES 4096L

int main(void)
{
	char *memory = mmap(0, 3 * PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char *end = memory + 2 * PAGE_BYTES;
	int calls = 0;

	mprotect(end, PAGE_BYTES, PROT_NONE);
	memset(memory, '0', 2 * PAGE_BYTES);
	while (calls < 3000) {
		long bytes = calls * 7L % 4200 + 1;
		calls += chdir(end - bytes) < 0;
	}
	return 0;
}
