// Instances of epoll, and what is in them before it is a connection.
#include "sockets.h"

// As nginx: a socket is in an epoll instance before it is connected. `mode` 0 adds it edge-triggered, 1 level-triggered, 2 changes
// its mind before it connects, 3 takes it out again.
static void exchange_by_epoll(int mode) {
    struct sockaddr_in address;
    int listener = listening(&address), set = epoll_create1(EPOLL_CLOEXEC);
    struct pair p = {.a = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0)};
    struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP | (mode == 1 ? 0 : EPOLLET), .data.u64 = 77};
    CHECK(epoll_ctl(set, EPOLL_CTL_ADD, p.a, &event) == 0);
    event.data.u64 = mode == 2 ? 78 : 77;
    if (mode == 2) CHECK(epoll_ctl(set, EPOLL_CTL_MOD, p.a, &event) == 0);
    if (mode == 3) CHECK(epoll_ctl(set, EPOLL_CTL_DEL, p.a, NULL) == 0);
    uint64_t data = event.data.u64;
    CHECK(connect(p.a, (struct sockaddr *)&address, sizeof address) == 0 || errno == EINPROGRESS);
    CHECK((p.b = accept(listener, NULL, NULL)) >= 0);
    if (mode == 3) {
        warm_up(p);
        send_all(p.b, "x", 1);
        CHECK(epoll_wait(set, &event, 1, 100) == 0);
        event.events = EPOLLIN;
        CHECK(epoll_ctl(set, EPOLL_CTL_ADD, p.a, &event) == 0 && epoll_wait(set, &event, 1, 5000) == 1);
        return;
    }
    char byte;
    while (epoll_wait(set, &event, 1, 0) == 1) CHECK(recv(p.a, &byte, 1, 0) == -1 && errno == EAGAIN);
    for (int round = 0; round < 50; round++) {
        send_all(p.a, "?", 1);
        receive_all(p.b, &byte, 1);
        send_all(p.b, "!", 1);
        CHECK(epoll_wait(set, &event, 1, 5000) == 1 && event.data.u64 == data && event.events == EPOLLIN);
        CHECK(recv(p.a, &byte, 1, 0) == 1 && byte == '!' && recv(p.a, &byte, 1, 0) == -1 && errno == EAGAIN);
    }
    warm_up(p);
    CHECK(close(p.b) == 0 && epoll_wait(set, &event, 1, 5000) == 1 && (event.events & EPOLLRDHUP) != 0);
    close(p.a);
    close(set);
    close(listener);
}

int case_added_before_connect(void) {
    for (int mode = 0; mode < 4; mode++) exchange_by_epoll(mode);
    return 0;
}

// As tokio: one descriptor of an instance waits, and another one, which is older than the first connection, changes it.
int case_duplicated_epoll(void) {
    int set = epoll_create1(EPOLL_CLOEXEC), copy = fcntl(set, F_DUPFD_CLOEXEC, 3), late;
    struct pair p = fresh();
    struct epoll_event event = {.events = EPOLLIN | EPOLLET, .data.u64 = 99};
    CHECK(copy >= 0 && epoll_ctl(copy, EPOLL_CTL_ADD, p.b, &event) == 0);
    CHECK((late = dup(set)) >= 0);
    // Whichever descriptors are left.
    for (int round = 0; round < 60; round++) {
        if (round == 20) close(copy);
        if (round == 40) close(set);
        char byte;
        send_all(p.a, "?", 1);
        CHECK(epoll_wait(round < 40 && round % 2 ? set : late, &event, 1, 5000) == 1);
        CHECK(event.data.u64 == 99 && event.events == EPOLLIN && recv(p.b, &byte, 1, 0) == 1);
        send_all(p.b, "!", 1);
        receive_all(p.a, &byte, 1);
        if (round == 30) warm_up(p);
        while (epoll_wait(late, &event, 1, 0) == 1) CHECK(event.data.u64 == 99);
    }
    event.events = EPOLLIN;
    CHECK(epoll_ctl(late, EPOLL_CTL_MOD, p.b, &event) == 0 && epoll_ctl(late, EPOLL_CTL_DEL, p.b, NULL) == 0);
    send_all(p.a, "?", 1);
    CHECK(epoll_wait(late, &event, 1, 100) == 0);
    return 0;
}
