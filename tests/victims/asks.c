/* Makes system calls with arguments of every kind, as its first argument says. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static char longest[5000];

static void arguments(void)
{
	char buffer[64];
	memset(longest, 'x', sizeof longest - 1);
	longest[0] = '/';
	open("/nonexistent/plain", O_RDONLY);
	open("/nonexistent/\"quoted\"\n\t\\\x7f\xc3\xa4" "1", O_WRONLY | O_CREAT | O_EXCL, 0640);
	open("", O_RDWR);
	open(NULL, O_RDONLY);
	open((char *)1, O_RDONLY);
	open(longest, O_RDONLY);
	rename("/nonexistent/from", "/nonexistent/to");
	access("/nonexistent/accessed", R_OK | W_OK);
	access("/", F_OK);
	int ends[2];
	if (pipe(ends) != 0)
		exit(1);
	write(ends[1], "0123456789012345678901234567890123456789", 40);
	read(ends[0], buffer, sizeof buffer);
	write(ends[1], "", 0);
	write(ends[1], "nul\0byte\0017", 10);
	read(ends[0], buffer, 3);
	read(ends[0], buffer, 64);
	write(ends[1], (char *)1, 5);
	read(-1, buffer, 5);
	close(-1);
	mkdir("/nonexistent/made", 0755);
	kill(getpid(), 0);
	lseek(ends[0], -3, SEEK_CUR);
}

static void *calls(void *count)
{
	for (long i = 0; i < (long)count; i++)
		syscall(SYS_getppid);
	return NULL;
}

static void handler(int signal) { (void)signal; }

int main(int count, char **argument)
{
	const char *what = count > 1 ? argument[1] : "";
	long number = count > 2 ? atol(argument[2]) : 0;
	if (strcmp(what, "arguments") == 0) {
		arguments();
	} else if (strcmp(what, "calls") == 0) {
		calls((void *)number);
	} else if (strcmp(what, "threads") == 0) {
		pthread_t threads[8];
		for (int i = 0; i < 8; i++)
			pthread_create(&threads[i], NULL, calls, (void *)number);
		for (int i = 0; i < 8; i++)
			pthread_join(threads[i], NULL);
	} else if (strcmp(what, "children") == 0) {
		for (int i = 0; i < number; i++) {
			if (fork() == 0) {
				syscall(SYS_getppid);
				_exit(0);
			}
			wait(NULL);
		}
	} else if (strcmp(what, "interrupted") == 0) {
		struct sigaction action = { .sa_handler = handler };
		sigaction(SIGALRM, &action, NULL);
		ualarm(20000, 0);
		pause();
	} else if (strcmp(what, "loop") == 0) {
		puts("ready");
		fflush(stdout);
		while (getchar() != EOF)
			syscall(SYS_getppid);
	} else if (strcmp(what, "exit") == 0) {
		_exit((int)number);
	} else if (strcmp(what, "die") == 0) {
		kill(getpid(), (int)number);
	}
	return 0;
}
