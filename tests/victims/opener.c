// SPDX-License-Identifier: MIT OR Apache-2.0
// For each line of input: opens the library that the argument names.
#include <dlfcn.h>
#include <stdio.h>

int main(int argc, char **argv)
{
	char line[16];

	puts("ready");
	fflush(stdout);
	while (argc > 1 && fgets(line, sizeof(line), stdin)) {
		puts(dlopen(argv[1], RTLD_NOW) ? "opened" : dlerror());
		fflush(stdout);
	}
	return 0;
}
