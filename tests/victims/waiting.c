/* Makes system calls whose first argument counts them, in threads, in a signal handler, or as stores in a file. */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

static long count;
static volatile long handled;

static void call(long who, long number)
{
	syscall(SYS_getpgid, who << 32 | number);
}

static void *calls(void *who)
{
	for (long number = 0; number < count; number++)
		call((long)who, number);
	return NULL;
}

static void handler(int signal)
{
	(void)signal;
	call(1, handled++);
	call(1, handled++);
}

int main(int argc, char **argv)
{
	const char *kind = argc > 1 ? argv[1] : "";
	char line[16];
	count = argc > 2 ? atol(argv[2]) : 0;
	printf("%d\n", getpid());
	fflush(stdout);
	if (!fgets(line, sizeof line, stdin))
		return 2;
	if (!strcmp(kind, "threads")) {
		pthread_t threads[4];
		for (long who = 0; who < 4; who++)
			if (pthread_create(&threads[who], NULL, calls, (void *)who))
				return 3;
		for (long who = 0; who < 4; who++)
			pthread_join(threads[who], NULL);
	} else if (!strcmp(kind, "handler")) {
		struct itimerval often = { { 0, 1000 }, { 0, 1000 } }, never = { { 0, 0 }, { 0, 0 } };
		signal(SIGALRM, handler);
		setitimer(ITIMER_REAL, &often, NULL);
		calls((void *)0);
		setitimer(ITIMER_REAL, &never, NULL);
	} else if (!strcmp(kind, "stores")) {
		int file = open(argv[3], O_RDWR);
		for (long number = 1; number <= count; number++)
			if (syscall(SYS_pwrite64, file, &number, sizeof number, 0) != sizeof number)
				return 4;
	} else {
		calls((void *)0);
	}
	printf("done %ld\n", handled);
	fflush(stdout);
	/* It stays until it is told, for those who look at what is left in it. */
	if (fgets(line, sizeof line, stdin))
		return 5;
	return 0;
}
