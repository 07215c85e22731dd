// SPDX-License-Identifier: MIT OR Apache-2.0
// The memory that programs read.
#include <string.h>
#include <sys/mman.h>
#include "maps_tool.h"

// 0 if it is there.
static int make_text(void)
{
	void *page = mmap((void *)TEXT, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);

	if (page != (void *)TEXT)
		return -1;
	memset(page, 'x', TEXT_LENGTH);
	return 0;
}
