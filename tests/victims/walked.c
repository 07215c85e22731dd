// A program with a function that looks at its own return address, as collectors of garbage do. With `JAVA` it has the name by which ring3
// knows a Java virtual machine; else it is a module of Python's, and loads the library that its second argument names.
// Says how often the address was one of its own code.
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

extern char __executable_start, etext;

#ifdef JAVA
int JNI_CreateJavaVM(void) { return 1; }
#else
int PyInit_walked(void) { return 1; }
#endif

__attribute__((noinline, noclone)) int looks(char **at)
{
	*at = __builtin_return_address(0);
	__asm__ volatile("" ::: "memory");
	return 1;
}

int main(int argc, char **argv)
{
	char line[64], *at;
	int right = 0, n = atoi(argv[1]);

	setvbuf(stdout, NULL, _IONBF, 0);
	if (argc > 2 && !dlopen(argv[2], RTLD_NOW))
		return 2;
	puts("ready");
	if (!fgets(line, sizeof(line), stdin))
		return 1;
	for (int i = 0; i < n; i++)
		right += looks(&at) && at >= &__executable_start && at < &etext;
	printf("%d\n", right);
	fgets(line, sizeof(line), stdin);
	return 0;
}
