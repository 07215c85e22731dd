// SPDX-License-Identifier: MIT OR Apache-2.0
// Opens a library, calls it twice and closes it, as often as the second argument says.
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
	int sum = 0;

	for (int i = 0; argc > 2 && i < atoi(argv[2]); i++) {
		void *library = dlopen(argv[1], RTLD_NOW);
		int (*call)(int) = library ? (int (*)(int))dlsym(library, "in_library") : NULL;

		if (!call)
			return 1;
		sum += call(i) + call(i);
		dlclose(library);
	}
	printf("%d\n", sum);
	return 0;
}
