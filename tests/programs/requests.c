// requests serve PORT CONNECTIONS: accepts so many connections, then answers requests of 100 bytes with 5 until all have ended.
// requests ask ADDRESS PORT CONNECTIONS COUNT: a thread for each connection asks so often. Each waits by poll() before it reads.
// An ordinary program for TCP, to be run over rsockets.
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MOST = 128, REQUEST = 100, ANSWER = 5, LIMIT_MS = 10000 };

static struct sockaddr_in address;
static int count;

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static void no_delay(int fd) {
    int one = 1;
    if (setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one)) fail("TCP_NODELAY");
}

static void *ask(void *unused) {
    (void)unused;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address)) fail("connect");
    no_delay(fd);
    for (int n = 0; n < count; n++) {
        char request[REQUEST], answer[ANSWER];
        memset(request, n, sizeof request);
        if (send(fd, request, sizeof request, 0) != sizeof request) fail("send");
        for (size_t got = 0; got < sizeof answer;) {
            struct pollfd one = {fd, POLLIN, 0};
            if (poll(&one, 1, LIMIT_MS) != 1) fail("no answer");
            ssize_t len = recv(fd, answer + got, sizeof answer - got, 0);
            if (len <= 0) fail("recv");
            got += (size_t)len;
        }
        for (size_t at = 0; at < sizeof answer; at++)
            if (answer[at] != (char)n) fail("wrong answer");
    }
    close(fd);
    return NULL;
}

static void serve(int connections) {
    static struct { size_t got; char bytes[REQUEST]; } of[MOST];
    static struct pollfd fds[MOST];
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, MOST)) fail("listen");
    for (int n = 0; n < connections; n++) {
        fds[n] = (struct pollfd){accept(listener, NULL, NULL), POLLIN, 0};
        if (fds[n].fd < 0) fail("accept");
        no_delay(fds[n].fd);
    }
    for (int open = connections; open != 0;) {
        if (poll(fds, (nfds_t)connections, LIMIT_MS) <= 0) fail("no request");
        for (int n = 0; n < connections; n++) {
            if (fds[n].fd < 0 || !fds[n].revents) continue;
            ssize_t len = recv(fds[n].fd, of[n].bytes + of[n].got, REQUEST - of[n].got, 0);
            if (len <= 0) {
                close(fds[n].fd);
                fds[n].fd = -1;
                open--;
            } else if ((of[n].got += (size_t)len) == REQUEST) {
                of[n].got = 0;
                if (send(fds[n].fd, of[n].bytes, ANSWER, 0) != ANSWER) fail("send");
            }
        }
    }
    close(listener);
}

int main(int argc, char **argv) {
    int is_server = argc == 4 && !strcmp(argv[1], "serve");
    if (!is_server && argc != 6) return 2;
    address.sin_family = AF_INET;
    address.sin_port = htons((uint16_t)atoi(argv[is_server ? 2 : 3]));
    int connections = atoi(argv[is_server ? 3 : 4]);
    if (connections < 1 || connections > MOST) return 2;
    if (is_server) {
        serve(connections);
        return 0;
    }
    count = atoi(argv[5]);
    if (inet_pton(AF_INET, argv[2], &address.sin_addr) != 1) return 2;
    pthread_t threads[MOST];
    for (int n = 0; n < connections; n++) pthread_create(&threads[n], NULL, ask, NULL);
    for (int n = 0; n < connections; n++) pthread_join(threads[n], NULL);
    printf("%d answers\n", connections * count);
    return 0;
}
