// Works in one function all the time, and tells where a text of its own is.
#include <stdio.h>

static volatile int over;
static const char text[] = "of the spinning process";

__attribute__((noinline)) static void spin(void)
{
	__asm__ volatile("0: jmp 0b");
}

__attribute__((noinline)) static int work(void)
{
	spin();
	return over;
}

int main(void)
{
	printf("ready\n%p\n", (const void *)text);
	fflush(stdout);
	return work() + 1;
}
