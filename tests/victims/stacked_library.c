// Loaded while the program runs; bound lazily. Tells its stack from a plain function and from the resolver of an indirect function, which the
// dynamic loader calls when that is called first.
static void (*tell)(const char *);

static void nothing(void)
{
}

static void (*resolve(void))(void)
{
	if (tell)
		tell("binding");
	return nothing;
}

void indirect(void) __attribute__((ifunc("resolve")));

__attribute__((noinline)) static void inside(void)
{
	tell("dlopen");
	asm volatile("" ::: "memory");
}

__attribute__((noinline)) void stacked(void (*with)(const char *))
{
	volatile char room[333];

	tell = with;
	room[0] = 1;
	inside();
	indirect();
	asm volatile("" ::: "memory");
	room[0]++;
}
