// Ends of connections mean what they mean to TCP.
#include "sockets.h"

int case_half_close(void) {
    struct pair p = connected();
    unsigned char bytes[5000];
    fill(bytes, sizeof bytes, 0);
    send_all(p.a, bytes, sizeof bytes);
    CHECK(shutdown(p.a, SHUT_WR) == 0);
    receive_all(p.b, bytes, sizeof bytes);
    check(bytes, sizeof bytes, 0);
    CHECK(recv(p.b, bytes, 1, 0) == 0 && recv(p.b, bytes, 1, 0) == 0);
    CHECK(send(p.a, bytes, 1, MSG_NOSIGNAL) == -1 && errno == EPIPE);
    // The other direction goes on.
    for (int round = 0; round < 50; round++) {
        fill(bytes, sizeof bytes, 1);
        send_all(p.b, bytes, sizeof bytes);
        receive_all(p.a, bytes, sizeof bytes);
        check(bytes, sizeof bytes, 1);
    }
    close(p.b);
    CHECK(recv(p.a, bytes, 1, 0) == 0);
    return 0;
}

static void *answer(void *argument) {
    int fd = accept(*(int *)argument, NULL, NULL);
    unsigned char bytes[3000];
    receive_all(fd, bytes, 10);
    fill(bytes, sizeof bytes, 0);
    for (int i = 0; i < 3; i++) send_all(fd, bytes + 1000 * i, 1000);
    CHECK(shutdown(fd, SHUT_WR) == 0 && close(fd) == 0);
    return NULL;
}

// As HTTP/1.0 does: the end comes with the answer, while the move to a ring is under way.
int case_answer_and_close(void) {
    struct sockaddr_in address;
    int listener = listening(&address);
    for (int round = 0; round < 300; round++) {
        pthread_t thread;
        unsigned char bytes[3000];
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        CHECK(pthread_create(&thread, NULL, answer, &listener) == 0);
        CHECK(connect(fd, (struct sockaddr *)&address, sizeof address) == 0);
        for (int i = 0; i < 5; i++) send_all(fd, "xy", 2);
        if (round % 3 == 0) pthread_join(thread, NULL);
        receive_all(fd, bytes, sizeof bytes);
        check(bytes, sizeof bytes, 0);
        CHECK(recv(fd, bytes, 1, 0) == 0);
        if (round % 3 != 0) pthread_join(thread, NULL);
        close(fd);
    }
    return 0;
}

// As Redis ends a connection that speaks nonsense: what it has said last is still to be had after the reset that its close with
// unread data is, also by a peer that finds out by a call that sends.
int case_answer_before_reset(void) {
    for (int round = 0; round < 20; round++) {
        struct pair p = connected();
        char bytes[10];
        send_all(p.a, "nonsense", 8);
        if (round % 2) receive_all(p.b, bytes, 3);
        send_all(p.b, "error", 5);
        CHECK(close(p.b) == 0);
        double limit = seconds() + 5;
        while (send(p.a, "more", 4, MSG_NOSIGNAL) > 0) CHECK(seconds() < limit);
        CHECK(errno == ECONNRESET || errno == EPIPE);
        CHECK(recv(p.a, bytes, 10, 0) == 5 && memcmp(bytes, "error", 5) == 0);
        CHECK(recv(p.a, bytes, 10, 0) <= 0 && close(p.a) == 0);
    }
    return 0;
}

int case_close_with_unread_data(void) {
    struct pair p = connected();
    char bytes[100] = {0};
    send_all(p.a, bytes, sizeof bytes);
    struct pollfd wait = {.fd = p.b, .events = POLLIN};
    CHECK(poll(&wait, 1, 5000) == 1);
    close(p.b);
    wait = (struct pollfd){.fd = p.a, .events = POLLIN};
    CHECK(poll(&wait, 1, 5000) == 1 && (wait.revents & POLLERR) != 0);
    CHECK(recv(p.a, bytes, 1, 0) == -1 && errno == ECONNRESET);
    CHECK(send(p.a, bytes, 1, MSG_NOSIGNAL) == -1 && errno == EPIPE);
    return 0;
}

// Also where nothing has been read, and nothing will be.
int case_close_after_shutdown_of_reading(void) {
    struct pair p = fresh();
    char bytes[10] = {0};
    // Those that have gone by TCP have been read, and those of the ring have not.
    for (int i = 0; i < 3; i++) send_all(p.a, bytes, sizeof bytes);
    receive_all(p.b, bytes, sizeof bytes);
    for (int i = 0; i < 20; i++) send_all(p.a, bytes, sizeof bytes);
    CHECK(shutdown(p.b, SHUT_RD) == 0 && close(p.b) == 0);
    struct pollfd wait = {.fd = p.a, .events = POLLIN};
    CHECK(poll(&wait, 1, 5000) == 1);
    CHECK(recv(p.a, bytes, 1, 0) == -1 && errno == ECONNRESET);
    return 0;
}

int case_shutdown_of_reading(void) {
    struct pair p = connected();
    char byte;
    CHECK(shutdown(p.b, SHUT_RD) == 0 && recv(p.b, &byte, 1, 0) == 0);
    send_all(p.b, "x", 1);
    receive_all(p.a, &byte, 1);
    CHECK(shutdown(p.b, SHUT_RDWR) == 0 && send(p.b, "x", 1, MSG_NOSIGNAL) == -1 && errno == EPIPE);
    CHECK(recv(p.a, &byte, 1, 0) == 0);
    return 0;
}

// What a killed process has sent arrives, then the end.
int case_killed_peer(void) {
    struct sockaddr_in address;
    int listener = listening(&address);
    for (int round = 0; round < 10; round++) {
        pid_t child = fork();
        if (child == 0) {
            struct pair p = {.a = socket(AF_INET, SOCK_STREAM, 0)};
            CHECK(connect(p.a, (struct sockaddr *)&address, sizeof address) == 0);
            unsigned char bytes[4096];
            for (uint64_t at = 0;; at += sizeof bytes) {
                fill(bytes, sizeof bytes, at);
                send_all(p.a, bytes, sizeof bytes);
            }
        }
        int fd = accept(listener, NULL, NULL);
        unsigned char bytes[10000];
        uint64_t at = 0;
        while (at < 500000 + (uint64_t)round * 99999) {
            ssize_t some = recv(fd, bytes, sizeof bytes, 0);
            CHECK(some > 0);
            check(bytes, (size_t)some, at);
            at += (uint64_t)some;
        }
        kill(child, SIGKILL);
        ssize_t some;
        while ((some = recv(fd, bytes, sizeof bytes, 0)) > 0) {
            check(bytes, (size_t)some, at);
            at += (uint64_t)some;
        }
        CHECK(some == 0 || errno == ECONNRESET);
        waitpid(child, NULL, 0);
        close(fd);
    }
    return 0;
}

static volatile sig_atomic_t pipes;
static void on_pipe(int signal) {
    (void)signal;
    pipes++;
}

int case_broken_pipe(void) {
    struct pair p = connected();
    signal(SIGPIPE, on_pipe);
    close(p.b);
    static char bytes[100000];
    double begin = seconds();
    while (pipes == 0) {
        ssize_t sent = write(p.a, bytes, sizeof bytes);
        CHECK(sent > 0 || errno == EPIPE || errno == ECONNRESET);
        CHECK(seconds() - begin < 20);
    }
    CHECK(write(p.a, bytes, 1) == -1 && errno == EPIPE);
    return 0;
}

int case_duplicates(void) {
    struct pair p = connected();
    char bytes[10] = {0};
    int other = dup(p.b), far = fcntl(p.b, F_DUPFD_CLOEXEC, 300), over = dup(0);
    CHECK(other >= 0 && far >= 300 && dup2(p.b, over) == over);
    int all[] = {p.b, other, far, over};
    for (int i = 0; i < 4; i++) {
        send_all(p.a, "ping", 4);
        receive_all(all[i], bytes, 4);
        send_all(all[3 - i], "pong", 4);
        receive_all(p.a, bytes, 4);
    }
    CHECK(is_on_ring(p.a, far) == is_accelerated());
    for (int i = 0; i < 3; i++) close(all[i]);
    send_all(p.a, "ping", 4);
    receive_all(over, bytes, 4);
    close(over);
    CHECK(recv(p.a, bytes, 1, 0) == 0);
    return 0;
}

// As libuv: the descriptor is closed past libc's functions, and its number is another connection's at once, in the same set.
int case_closed_by_system_call(void) {
    int set = epoll_create1(EPOLL_CLOEXEC);
    for (int round = 0; round < 5; round++) {
        struct pair p = connected();
        struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP, .data.u64 = (uint64_t)round};
        CHECK(epoll_ctl(set, EPOLL_CTL_ADD, p.b, &event) == 0);
        CHECK(epoll_wait(set, &event, 1, 0) == 0);
        send_all(p.a, "bytes", 5);
        CHECK(epoll_wait(set, &event, 1, 10000) == 1 && event.events == EPOLLIN && event.data.u64 == (uint64_t)round);
        char bytes[5];
        receive_all(p.b, bytes, 5);
        if (round % 2 == 0) CHECK(epoll_ctl(set, EPOLL_CTL_DEL, p.b, NULL) == 0);
        CHECK(syscall(SYS_close, p.b) == 0);
        CHECK(recv(p.a, bytes, 1, 0) == 0);
        CHECK(syscall(SYS_close, p.a) == 0);
        CHECK(epoll_wait(set, &event, 1, 0) == 0);
    }
    return 0;
}

// Each call that carries bytes, made by its number.
int case_bytes_by_system_calls(void) {
    struct pair p = connected();
    char bytes[16] = {0};
    struct iovec parts[2] = {{.iov_base = bytes, .iov_len = 2}, {.iov_base = bytes + 2, .iov_len = 1}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    CHECK(syscall(SYS_write, p.a, "abc", 3) == 3 && syscall(SYS_read, p.b, bytes, 16) == 3 && memcmp(bytes, "abc", 3) == 0);
    memcpy(bytes, "def", 3);
    CHECK(syscall(SYS_writev, p.a, parts, 2) == 3 && syscall(SYS_readv, p.b, parts, 2) == 3 && memcmp(bytes, "def", 3) == 0);
    CHECK(syscall(SYS_sendto, p.a, "ghi", 3, 0, NULL, 0) == 3);
    CHECK(syscall(SYS_recvfrom, p.b, bytes, 16, 0, NULL, NULL) == 3 && memcmp(bytes, "ghi", 3) == 0);
    memcpy(bytes, "jkl", 3);
    CHECK(syscall(SYS_sendmsg, p.a, &message, 0) == 3 && syscall(SYS_recvmsg, p.b, &message, 0) == 3);
    CHECK(memcmp(bytes, "jkl", 3) == 0 && (!is_accelerated() || is_on_ring(p.a, p.b)));
    int copy = (int)syscall(SYS_dup, p.a);
    CHECK(copy >= 0 && syscall(SYS_shutdown, p.a, SHUT_WR) == 0);
    CHECK(send(copy, "x", 0, MSG_NOSIGNAL) == -1 && errno == EPIPE && recv(p.b, bytes, 1, 0) == 0);
    return 0;
}

static void nothing(int number) { (void)number; }

struct reader {
    int fd;
    bool polls;
    volatile bool is_closed;
};

// Reads until another thread has closed the connection.
static void *read_until_closed(void *argument) {
    struct reader *reader = argument;
    ssize_t got;
    do {
        char byte;
        struct pollfd wait = {.fd = reader->fd, .events = POLLIN};
        got = reader->polls && poll(&wait, 1, -1) < 0 ? -1 : recv(reader->fd, &byte, 1, 0);
    } while (got < 0 && errno == EINTR && !reader->is_closed);
    CHECK(got <= 0);
    return NULL;
}

// As a JVM: a socket whose peer has gone takes the descriptor's place, and a signal tells the thread that waits for it.
int case_closed_beside_reader(void) {
    struct sigaction action = {.sa_handler = nothing};
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
    int gone[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, gone) == 0);
    close(gone[1]);
    for (int round = 0; round < 20; round++) {
        struct pair p = connected();
        struct reader reader = {.fd = p.b, .polls = round % 2};
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, read_until_closed, &reader) == 0);
        usleep((useconds_t)(round / 2 * 100));
        reader.is_closed = true;
        CHECK(dup2(gone[0], p.b) == p.b && pthread_kill(thread, SIGUSR1) == 0);
        CHECK(pthread_join(thread, NULL) == 0);
        char byte;
        CHECK(recv(p.a, &byte, 1, 0) == 0);
        close(p.a);
        close(p.b);
    }
    return 0;
}

// Connections of one thread, short and one after the other, while they move to rings: each end is reported once, as long as it is
// open, and an answer is read although a reset has followed it.
int case_quick_connections(void) {
    enum { ROUNDS = 600, WRITES = 24, LEN = 20 };
    struct sockaddr_in address;
    int listener = listening(&address), set = epoll_create1(0), on = 1;
    for (int round = 0; round < ROUNDS; round++) {
        unsigned char bytes[WRITES * LEN];
        int a = socket(AF_INET, SOCK_STREAM, 0);
        CHECK(connect(a, (struct sockaddr *)&address, sizeof address) == 0);
        CHECK(setsockopt(a, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) == 0);
        int b = accept(listener, NULL, NULL);
        nonblocking(a);
        nonblocking(b);
        fill(bytes, sizeof bytes, 0);
        for (size_t at = 0; at < sizeof bytes; at += LEN) CHECK(write(a, bytes + at, LEN) == LEN);
        struct epoll_event events[4], wanted = {.events = EPOLLIN, .data.fd = b};
        CHECK(epoll_ctl(set, EPOLL_CTL_ADD, b, &wanted) == 0);
        CHECK(epoll_wait(set, events, 4, 10000) == 1 && events[0].data.fd == b);
        // What is unread when it is closed resets the connection.
        size_t most = round % 2 == 0 ? sizeof bytes : 100;
        CHECK(read(b, bytes, most) == (ssize_t)most);
        CHECK(write(b, "answer", 6) == 6 && shutdown(b, SHUT_WR) == 0 && close(b) == 0);
        wanted.data.fd = a;
        CHECK(epoll_ctl(set, EPOLL_CTL_ADD, a, &wanted) == 0);
        CHECK(epoll_wait(set, events, 4, 10000) == 1 && events[0].data.fd == a);
        CHECK(read(a, bytes, sizeof bytes) == 6 && memcmp(bytes, "answer", 6) == 0);
        CHECK(read(a, bytes, sizeof bytes) == 0);
        close(a);
        CHECK(epoll_wait(set, events, 4, 0) == 0);
    }
    return 0;
}
