// Times that programs hand over, and readers that take theirs.
#include "sockets.h"

static void refuse(struct timespec time) {
    struct pair p = connected();
    struct pollfd wait = {.fd = p.b, .events = POLLIN};
    struct epoll_event event = {.events = EPOLLIN};
    int set = epoll_create1(EPOLL_CLOEXEC);
    CHECK(epoll_ctl(set, EPOLL_CTL_ADD, p.b, &event) == 0);
    CHECK(ppoll(&wait, 1, &time, NULL) == -1 && errno == EINVAL);
    CHECK(epoll_pwait2(set, &event, 1, &time, NULL) == -1 && errno == EINVAL);
    fd_set readable;
    FD_ZERO(&readable);
    FD_SET(p.b, &readable);
    CHECK(pselect(p.b + 1, &readable, NULL, NULL, &time, NULL) == -1 && errno == EINVAL);
    char bytes[10];
    struct iovec place = {bytes, sizeof bytes};
    struct mmsghdr message = {.msg_hdr = {.msg_iov = &place, .msg_iovlen = 1}};
    CHECK(recvmmsg(p.b, &message, 1, 0, &time) == -1 && errno == EINVAL);
    if (time.tv_nsec < 0 || time.tv_sec < 0) {
        struct timeval microseconds = {time.tv_sec, time.tv_nsec / 1000};
        CHECK(select(p.b + 1, &readable, NULL, NULL, &microseconds) == -1 && errno == EINVAL);
    }
}

int case_no_times(void) {
    refuse((struct timespec){-1, 0});
    refuse((struct timespec){0, -5000});
    refuse((struct timespec){0, 1000000000});
    return 0;
}

// The first message is waited for as long as it takes, and no other one once the time is over.
int case_times_of_recvmmsg(void) {
    struct pair p = connected();
    char bytes[2][10];
    struct iovec places[] = {{bytes[0], 10}, {bytes[1], 10}};
    struct mmsghdr messages[] = {{.msg_hdr = {.msg_iov = &places[0], .msg_iovlen = 1}}, {.msg_hdr = {.msg_iov = &places[1], .msg_iovlen = 1}}};
    struct timespec none = {0, 0}, some = {50, 0};
    send_all(p.a, "ten bytes.ten bytes.", 20);
    CHECK(recvmmsg(p.b, messages, 2, 0, &none) == 1 && messages[0].msg_len == 10);
    CHECK(recvmmsg(p.b, messages, 1, 0, &some) == 1 && some.tv_sec < 50 && some.tv_sec >= 30);
    return 0;
}

// Less than no time to wait: nothing waits.
int case_negative_time_outs(void) {
    struct pair p = connected();
    struct timeval less = {-1, 0};
    char byte;
    CHECK(setsockopt(p.b, SOL_SOCKET, SO_RCVTIMEO, &less, sizeof less) == 0);
    CHECK(recv(p.b, &byte, 1, 0) == -1 && errno == EAGAIN);
    send_all(p.a, "x", 1);
    struct pollfd wait = {.fd = p.b, .events = POLLIN};
    CHECK(poll(&wait, 1, 5000) == 1 && recv(p.b, &byte, 1, 0) == 1 && byte == 'x');
    struct timeval again = {0, 50000};
    CHECK(setsockopt(p.b, SOL_SOCKET, SO_RCVTIMEO, &again, sizeof again) == 0);
    double begin = seconds();
    CHECK(recv(p.b, &byte, 1, 0) == -1 && errno == EAGAIN && seconds() - begin >= 0.045);
    return 0;
}

enum { EXCHANGED = 400000 };

struct exchange {
    int fd;
    int how;
};

static void wait_for_space(int fd, int how) {
    if (how == 1) {
        struct pollfd wait = {.fd = fd, .events = POLLOUT};
        CHECK(poll(&wait, 1, 10000) == 1);
        return;
    }
    // A set of its own for each wait, or one that is kept: the edge of space is told in both.
    static __thread int set = -1;
    struct epoll_event event = {.events = EPOLLOUT | EPOLLET};
    if (set < 0) {
        set = epoll_create1(EPOLL_CLOEXEC);
        CHECK(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
    }
    CHECK(epoll_wait(set, &event, 1, 10000) == 1);
}

static void *exchange(void *argument) {
    struct exchange *own = argument;
    unsigned char *bytes = malloc(EXCHANGED);
    fill(bytes, EXCHANGED, 0);
    for (size_t done = 0; done < EXCHANGED;) {
        ssize_t sent = send(own->fd, bytes + done, EXCHANGED - done, MSG_NOSIGNAL);
        if (sent < 0) {
            CHECK(errno == EAGAIN && own->how != 0);
            wait_for_space(own->fd, own->how);
        } else {
            done += (size_t)sent;
        }
    }
    memset(bytes, 0, EXCHANGED);
    receive_all(own->fd, bytes, EXCHANGED);
    check(bytes, EXCHANGED, 0);
    free(bytes);
    return NULL;
}

// Two programs that send to each other before they read: TCP's buffers have room for that.
int case_exchange_of_much(void) {
    for (int how = 0; how < 3; how++) {
        struct pair p = connected();
        if (how != 0) {
            nonblocking(p.a);
            nonblocking(p.b);
        }
        struct exchange ends[] = {{p.a, how}, {p.b, how}};
        pthread_t threads[2];
        for (int i = 0; i < 2; i++) CHECK(pthread_create(&threads[i], NULL, exchange, &ends[i]) == 0);
        for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
        // What follows arrives, whichever way it goes.
        is_on_ring(p.a, p.b);
        is_on_ring(p.b, p.a);
        close(p.a);
        close(p.b);
    }
    return 0;
}

// Each wait finds what has come by a ring, also where the program makes the call by its number.
int case_waits_by_system_calls(void) {
    struct pair p = connected();
    struct timespec time = {10, 0};
    struct timeval microseconds = {10, 0};
    struct pollfd wait = {.fd = p.b, .events = POLLIN};
    struct epoll_event event = {.events = EPOLLIN};
    int set = (int)syscall(SYS_epoll_create1, EPOLL_CLOEXEC);
    CHECK(set >= 0 && syscall(SYS_epoll_ctl, set, EPOLL_CTL_ADD, p.b, &event) == 0);
    CHECK(syscall(SYS_epoll_pwait, set, &event, 1, 0, NULL, 8) == 0);
    send_all(p.a, "x", 1);
    CHECK(syscall(SYS_epoll_pwait, set, &event, 1, 10000, NULL, 8) == 1 && event.events == EPOLLIN);
    CHECK(syscall(SYS_epoll_pwait2, set, &event, 1, &time, NULL, 8) == 1 && event.events == EPOLLIN);
    CHECK(syscall(SYS_ppoll, &wait, 1, &time, NULL, 8) == 1 && wait.revents == POLLIN);
    fd_set readable;
    FD_ZERO(&readable);
    FD_SET(p.b, &readable);
    CHECK(syscall(SYS_pselect6, p.b + 1, &readable, NULL, NULL, &time, NULL) == 1 && FD_ISSET(p.b, &readable));
#ifdef SYS_poll
    CHECK(syscall(SYS_poll, &wait, 1, 10000) == 1 && wait.revents == POLLIN);
    CHECK(syscall(SYS_select, p.b + 1, &readable, NULL, NULL, &microseconds) == 1 && FD_ISSET(p.b, &readable));
    CHECK(syscall(SYS_epoll_wait, set, &event, 1, 10000) == 1 && event.events == EPOLLIN);
#endif
    char bytes[4];
    struct iovec place = {bytes, sizeof bytes};
    CHECK(syscall(SYS_preadv2, p.b, &place, 1, -1L, -1L, 0) == 1 && bytes[0] == 'x');
    CHECK(syscall(SYS_pwritev2, p.a, &place, 1, -1L, -1L, 0) == 4);
    receive_all(p.b, bytes, 4);
    CHECK(!is_accelerated() || is_on_ring(p.a, p.b));
    return 0;
}
