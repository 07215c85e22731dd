// Receives with a timeout, again and again, until there is input; says how often that was interrupted.
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/time.h>

int main(void) {
    int ends[2];
    struct timeval timeout = {.tv_usec = 200000};
    struct pollfd input = {.fd = 0, .events = POLLIN};
    int interrupted = 0;
    char byte;
    socketpair(AF_UNIX, SOCK_STREAM, 0, ends);
    setsockopt(ends[0], SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
    puts("ready");
    fflush(stdout);
    while (poll(&input, 1, 0) == 0)
        if (recv(ends[0], &byte, 1, 0) < 0 && errno == EINTR)
            interrupted++;
    printf("%d\n", interrupted);
    return 0;
}
