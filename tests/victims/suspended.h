// A handler that comes while the thread waits with every other signal blocked, and has that mask.
#include <signal.h>
#include <unistd.h>

static void handle_suspended(void (*handler)(int))
{
    sigset_t all_but, usr1;
    sigfillset(&all_but);
    sigdelset(&all_but, SIGUSR1);
    sigemptyset(&usr1);
    sigaddset(&usr1, SIGUSR1);
    signal(SIGUSR1, handler);
    sigprocmask(SIG_BLOCK, &usr1, 0);
    kill(getpid(), SIGUSR1);
    sigsuspend(&all_but);
}
