/* Makes system calls while a timer's signals come, whose handler makes one, too, until it has run as often as the first argument says.
 * A second argument is the path of the calls. It prints how often the handler has run. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>
#include <unistd.h>

static volatile int runs;
static int null;

static void handle(int signal)
{
	(void)signal;
	runs++;
	if (write(null, "storm", 5) != 5)
		_exit(2);
}

int main(int argc, char **argv)
{
	const int wanted = argc > 1 ? atoi(argv[1]) : 1;
	struct sigaction action = { .sa_handler = handle, .sa_flags = SA_RESTART };
	struct itimerval often = { { 0, 1000 }, { 0, 1000 } }, never = { 0 };

	null = open("/dev/null", O_WRONLY);
	sigaction(SIGALRM, &action, NULL);
	setitimer(ITIMER_REAL, &often, NULL);
	while (runs < wanted) {
		if (argc > 2)
			access(argv[2], F_OK);
		else
			getppid();
	}
	setitimer(ITIMER_REAL, &never, NULL);
	printf("%d\n", runs);
	return 0;
}
