// Servers that have a child for each connection, and children that share connections with their parents.
#include "sockets.h"

static int connected_to(struct sockaddr_in *address) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(connect(fd, (struct sockaddr *)address, sizeof *address) == 0);
    return fd;
}

// Sends back what comes, waiting as `way` says, until the end.
static void echo(int fd, int way) {
    unsigned char bytes[5000];
    int set = epoll_create1(EPOLL_CLOEXEC);
    if (way == 1) {
        struct epoll_event event = {.events = EPOLLIN};
        CHECK(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
    }
    for (;;) {
        struct epoll_event event;
        struct pollfd wait = {.fd = fd, .events = POLLIN};
        if (way == 1) CHECK(epoll_wait(set, &event, 1, 10000) == 1);
        if (way == 2) CHECK(poll(&wait, 1, 10000) == 1);
        ssize_t some = recv(fd, bytes, sizeof bytes, 0);
        if (some <= 0) break;
        send_all(fd, bytes, (size_t)some);
    }
}

// Whether the connection gets rings within so many seconds.
static bool gets_rings(int fd, double limit) {
    double begin = seconds();
    while (!is_asked_on_ring(fd)) {
        if (seconds() - begin > limit) return false;
    }
    return true;
}

// As PostgreSQL: the parent accepts, and closes what is its child's. One that is slow to, because others want its processor, leaves
// the connection on TCP.
int case_children_own_connections(void) {
    struct sockaddr_in address;
    int listener = listening(&address);
    pid_t server = fork();
    if (server == 0) {
        for (int way = 0;; way = (way + 1) % 3) {
            int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
            CHECK(fd >= 0);
            if (fork() == 0) {
                close(listener);
                // A second descriptor is the same connection.
                int second = dup(fd);
                echo(fd, way);
                close(second);
                _exit(0);
            }
            close(fd);
        }
    }
    unsigned char bytes[3000];
    int on_rings = 0;
    for (int client = 0; client < 12; client++) {
        int fd = connected_to(&address);
        on_rings += gets_rings(fd, 0.1);
        for (uint64_t round = 0; round < 100; round++) {
            fill(bytes, sizeof bytes, round);
            send_all(fd, bytes, sizeof bytes);
            receive_all(fd, bytes, sizeof bytes);
            check(bytes, sizeof bytes, round);
        }
        CHECK(shutdown(fd, SHUT_WR) == 0 && recv(fd, bytes, 1, 0) == 0);
        close(fd);
    }
    CHECK(is_accelerated() ? on_rings >= 4 : on_rings == 0);
    kill(server, SIGKILL);
    waitpid(server, NULL, 0);
    return 0;
}

// The child closes what it has inherited: the connection is the parent's as before.
int case_parent_keeps_connection(void) {
    struct sockaddr_in address;
    int listener = listening(&address);
    pid_t server = fork();
    if (server == 0) {
        int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        int closed[2];
        CHECK(pipe(closed) == 0);
        pid_t child = fork();
        if (child == 0) {
            close(fd);
            CHECK(write(closed[1], "", 1) == 1);
            pause();
        }
        char byte;
        CHECK(read(closed[0], &byte, 1) == 1);
        echo(fd, 1);
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
        _exit(0);
    }
    int fd = connected_to(&address);
    CHECK(gets_rings(fd, is_accelerated() ? 10 : 0.1) == is_accelerated());
    CHECK(shutdown(fd, SHUT_WR) == 0);
    int status;
    CHECK(waitpid(server, &status, 0) == server && status == 0);
    return 0;
}

// Both use it, one after the other, on TCP; and the one that is left goes on.
int case_connection_of_both(void) {
    struct sockaddr_in address;
    int listener = listening(&address);
    int turn[2];
    CHECK(pipe(turn) == 0);
    pid_t server = fork();
    if (server == 0) {
        int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        unsigned char byte;
        pid_t child = fork();
        for (int round = 0; round < 50; round++) {
            // Of two bytes each answers one, the child first.
            if (child != 0) CHECK(read(turn[0], &byte, 1) == 1);
            receive_all(fd, &byte, 1);
            CHECK(byte == (unsigned char)(2 * round + (child != 0)));
            send_all(fd, &byte, 1);
            if (child == 0) CHECK(write(turn[1], &byte, 1) == 1);
            while (child == 0 && recv(fd, &byte, 1, MSG_PEEK) == 1 && byte == (unsigned char)(2 * round + 1)) usleep(100);
        }
        if (child == 0) _exit(0);
        int status;
        CHECK(waitpid(child, &status, 0) == child && status == 0);
        echo(fd, 0);
        _exit(0);
    }
    int fd = connected_to(&address);
    for (int n = 0; n < 100; n++) {
        unsigned char byte = (unsigned char)n, answer;
        send_all(fd, &byte, 1);
        receive_all(fd, &answer, 1);
        CHECK(answer == byte);
    }
    is_asked_on_ring(fd);
    CHECK(shutdown(fd, SHUT_WR) == 0);
    int status;
    CHECK(waitpid(server, &status, 0) == server && status == 0);
    return 0;
}
