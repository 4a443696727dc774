// Waiting for sockets: epoll in all its modes, poll, select, blocking calls.
#include "sockets.h"

static int epoll_with(int fd, uint32_t events) {
    int set = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = {.events = events, .data.u64 = 0x1234567800000000u | (uint32_t)fd};
    CHECK(set >= 0 && epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) == 0);
    return set;
}

// The events of the only descriptor that is ready; 0 where none is within the time.
static uint32_t next_event(int set, int fd, int milliseconds) {
    struct epoll_event event;
    int count = epoll_wait(set, &event, 1, milliseconds);
    CHECK(count >= 0);
    if (count == 0) return 0;
    CHECK(event.data.u64 == (0x1234567800000000u | (uint32_t)fd));
    return event.events;
}

static void change(int set, int fd, uint32_t events) {
    struct epoll_event event = {.events = events, .data.u64 = 0x1234567800000000u | (uint32_t)fd};
    CHECK(epoll_ctl(set, EPOLL_CTL_MOD, fd, &event) == 0);
}

int case_level_triggered(void) {
    struct pair p = connected();
    int set = epoll_with(p.b, EPOLLIN);
    char bytes[10];
    CHECK(next_event(set, p.b, 0) == 0);
    for (int round = 0; round < 200; round++) {
        send_all(p.a, "xy", 2);
        CHECK(next_event(set, p.b, 5000) == EPOLLIN && next_event(set, p.b, 5000) == EPOLLIN);
        receive_all(p.b, bytes, 1);
        CHECK(next_event(set, p.b, 5000) == EPOLLIN);
        receive_all(p.b, bytes, 1);
        CHECK(next_event(set, p.b, 0) == 0);
    }
    change(set, p.b, EPOLLIN | EPOLLOUT);
    CHECK(next_event(set, p.b, 5000) == EPOLLOUT && next_event(set, p.b, 0) == EPOLLOUT);
    change(set, p.b, 0);
    send_all(p.a, "x", 1);
    CHECK(next_event(set, p.b, 0) == 0);
    change(set, p.b, EPOLLIN);
    CHECK(next_event(set, p.b, 5000) == EPOLLIN);
    CHECK(epoll_ctl(set, EPOLL_CTL_DEL, p.b, NULL) == 0 && next_event(set, p.b, 0) == 0);
    CHECK(epoll_ctl(set, EPOLL_CTL_DEL, p.b, NULL) == -1 && errno == ENOENT);
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = 0x1234567800000000u | (uint32_t)p.b};
    CHECK(epoll_ctl(set, EPOLL_CTL_ADD, p.b, &event) == 0 && next_event(set, p.b, 5000) == EPOLLIN);
    CHECK(epoll_ctl(set, EPOLL_CTL_ADD, p.b, &event) == -1 && errno == EEXIST);
    return 0;
}

int case_edge_triggered(void) {
    struct pair p = connected();
    nonblocking(p.b);
    int set = epoll_with(p.b, EPOLLIN | EPOLLET | EPOLLRDHUP);
    char bytes[10];
    for (int round = 0; round < 200; round++) {
        send_all(p.a, "xyz", 3);
        CHECK(next_event(set, p.b, 5000) == EPOLLIN && next_event(set, p.b, 0) == 0);
        CHECK(recv(p.b, bytes, 1, 0) == 1 && next_event(set, p.b, 0) == 0);
        // New bytes are an edge, also where old ones are unread.
        send_all(p.a, "w", 1);
        CHECK(next_event(set, p.b, 5000) == EPOLLIN && next_event(set, p.b, 0) == 0);
        CHECK(recv(p.b, bytes, 10, 0) == 3 && recv(p.b, bytes, 10, 0) == -1 && errno == EAGAIN);
    }
    CHECK(shutdown(p.a, SHUT_WR) == 0);
    CHECK(next_event(set, p.b, 5000) == (EPOLLIN | EPOLLRDHUP));
    CHECK(recv(p.b, bytes, 1, 0) == 0);
    return 0;
}

// As nginx does: one registration for everything.
int case_edge_of_space(void) {
    struct pair p = connected();
    nonblocking(p.a);
    int set = epoll_with(p.a, EPOLLIN | EPOLLOUT | EPOLLET | EPOLLRDHUP);
    CHECK(next_event(set, p.a, 5000) == EPOLLOUT && next_event(set, p.a, 0) == 0);
    static unsigned char bytes[1 << 16];
    for (int round = 0; round < 20; round++) {
        size_t sent = 0, received = 0;
        ssize_t some;
        while ((some = write(p.a, bytes, sizeof bytes)) > 0) sent += (size_t)some;
        CHECK(errno == EAGAIN && next_event(set, p.a, 0) == 0);
        while (received < sent) {
            CHECK((some = read(p.b, bytes, sizeof bytes)) > 0);
            received += (size_t)some;
        }
        CHECK((next_event(set, p.a, 5000) & EPOLLOUT) != 0);
    }
    return 0;
}

int case_one_shot(void) {
    struct pair p = connected();
    int set = epoll_with(p.b, EPOLLIN | EPOLLONESHOT);
    char byte;
    for (int round = 0; round < 50; round++) {
        send_all(p.a, "x", 1);
        CHECK(next_event(set, p.b, 5000) == EPOLLIN && next_event(set, p.b, 0) == 0);
        send_all(p.a, "x", 1);
        CHECK(next_event(set, p.b, 0) == 0);
        change(set, p.b, EPOLLIN | EPOLLONESHOT);
        CHECK(next_event(set, p.b, 5000) == EPOLLIN);
        receive_all(p.b, &byte, 1);
        receive_all(p.b, &byte, 1);
        change(set, p.b, EPOLLIN | EPOLLONESHOT);
        CHECK(next_event(set, p.b, 0) == 0);
    }
    return 0;
}

int case_end_by_epoll(void) {
    struct pair p = connected();
    int set = epoll_with(p.b, EPOLLIN | EPOLLRDHUP);
    send_all(p.a, "last", 4);
    close(p.a);
    char bytes[10];
    double begin = seconds();
    uint32_t events;
    while (((events = next_event(set, p.b, 5000)) & EPOLLRDHUP) == 0) CHECK(seconds() - begin < 5);
    CHECK((events & EPOLLIN) != 0 && recv(p.b, bytes, 10, 0) == 4 && recv(p.b, bytes, 10, 0) == 0);
    CHECK((next_event(set, p.b, 5000) & (EPOLLIN | EPOLLRDHUP)) == (EPOLLIN | EPOLLRDHUP));
    CHECK(shutdown(p.b, SHUT_WR) == 0);
    CHECK((next_event(set, p.b, 5000) & EPOLLHUP) != 0);
    close(p.b);
    CHECK(next_event(set, p.b, 0) == 0);
    return 0;
}

// Of an epoll instance in another one, in poll and in select.
int case_nested_epoll(void) {
    struct pair p = connected();
    int inner = epoll_with(p.b, EPOLLIN), outer = epoll_with(inner, EPOLLIN);
    char byte;
    for (int round = 0; round < 100; round++) {
        CHECK(next_event(outer, inner, 0) == 0);
        send_all(p.a, "x", 1);
        CHECK(next_event(outer, inner, 5000) == EPOLLIN);
        CHECK(next_event(inner, p.b, 0) == EPOLLIN);
        CHECK(next_event(outer, inner, 5000) == EPOLLIN);
        struct pollfd wait = {.fd = inner, .events = POLLIN};
        CHECK(poll(&wait, 1, 5000) == 1);
        receive_all(p.b, &byte, 1);
        CHECK(next_event(inner, p.b, 0) == 0);
    }
    return 0;
}

int case_two_sets(void) {
    struct pair p = connected();
    int sets[] = {epoll_with(p.b, EPOLLIN), epoll_with(p.b, EPOLLIN | EPOLLET)};
    char byte;
    for (int round = 0; round < 100; round++) {
        send_all(p.a, "x", 1);
        CHECK(next_event(sets[0], p.b, 5000) == EPOLLIN && next_event(sets[1], p.b, 5000) == EPOLLIN);
        CHECK(next_event(sets[0], p.b, 0) == EPOLLIN && next_event(sets[1], p.b, 0) == 0);
        receive_all(p.b, &byte, 1);
        CHECK(next_event(sets[0], p.b, 0) == 0 && next_event(sets[1], p.b, 0) == 0);
    }
    close(sets[0]);
    send_all(p.a, "x", 1);
    CHECK(next_event(sets[1], p.b, 5000) == EPOLLIN);
    return 0;
}

int case_modified_before_added(void) {
    struct pair p = connected();
    int set = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN};
    CHECK(epoll_ctl(set, EPOLL_CTL_MOD, p.b, &event) == -1 && errno == ENOENT);
    CHECK(epoll_ctl(set, EPOLL_CTL_ADD, p.b, &event) == 0 && epoll_ctl(set, EPOLL_CTL_MOD, p.b, &event) == 0);
    CHECK(epoll_ctl(set, EPOLL_CTL_DEL, p.b, &event) == 0);
    CHECK(epoll_ctl(set, EPOLL_CTL_MOD, p.b, &event) == -1 && errno == ENOENT);
    CHECK(epoll_ctl(set, EPOLL_CTL_ADD, p.b, &event) == 0 && epoll_ctl(set, EPOLL_CTL_MOD, p.b, &event) == 0);
    CHECK(epoll_ctl(p.a, EPOLL_CTL_ADD, p.b, &event) == -1 && errno == EINVAL);
    return 0;
}

int case_polled(void) {
    struct pair p = connected();
    int ends[2];
    CHECK(pipe(ends) == 0);
    char byte;
    struct pollfd wait[] = {{.fd = ends[0], .events = POLLIN}, {.fd = p.b, .events = POLLIN | POLLOUT}, {.fd = -1, .events = POLLIN}};
    CHECK(poll(wait, 3, 0) == 1 && wait[1].revents == POLLOUT);
    wait[1].events = POLLIN;
    CHECK(poll(wait, 3, 20) == 0);
    send_all(p.a, "x", 1);
    CHECK(poll(wait, 3, 5000) == 1 && wait[1].revents == POLLIN && wait[0].revents == 0);
    CHECK(write(ends[1], "x", 1) == 1);
    CHECK(poll(wait, 3, 5000) == 2 && wait[1].revents == POLLIN && wait[0].revents == POLLIN);
    receive_all(p.b, &byte, 1);
    CHECK(poll(wait, 3, 5000) == 1 && wait[1].revents == 0 && wait[0].revents == POLLIN);
    close(p.a);
    wait[1].events = POLLIN | POLLRDHUP;
    CHECK(poll(wait + 1, 1, 5000) == 1 && (wait[1].revents & POLLIN) != 0);
    return 0;
}

int case_selected(void) {
    struct pair p = connected();
    fd_set in, out;
    char byte;
    struct timeval time = {0, 30000};
    FD_ZERO(&in);
    FD_SET(p.b, &in);
    CHECK(select(p.b + 1, &in, NULL, NULL, &time) == 0 && !FD_ISSET(p.b, &in));
    send_all(p.a, "x", 1);
    FD_SET(p.b, &in);
    FD_ZERO(&out);
    FD_SET(p.b, &out);
    time = (struct timeval){5, 0};
    CHECK(select(p.b + 1, &in, &out, NULL, &time) == 2 && FD_ISSET(p.b, &in) && FD_ISSET(p.b, &out));
    receive_all(p.b, &byte, 1);
    struct timespec none = {0, 0};
    CHECK(pselect(p.b + 1, &in, NULL, NULL, &none, NULL) == 0);
    return 0;
}

int case_time_outs(void) {
    struct pair p = connected();
    struct timeval time = {0, 100000};
    char byte;
    CHECK(setsockopt(p.b, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time) == 0);
    CHECK(setsockopt(p.a, SOL_SOCKET, SO_SNDTIMEO, &time, sizeof time) == 0);
    double begin = seconds();
    CHECK(recv(p.b, &byte, 1, 0) == -1 && errno == EAGAIN);
    CHECK(seconds() - begin > 0.09);
    static char bytes[1 << 20];
    ssize_t some;
    while ((some = send(p.a, bytes, sizeof bytes, 0)) > 0) continue;
    CHECK(errno == EAGAIN);
    int set = epoll_with(p.a, EPOLLIN);
    begin = seconds();
    CHECK(next_event(set, p.a, 50) == 0 && seconds() - begin > 0.045);
    return 0;
}

static void nothing(int signal) { (void)signal; }

static void *later(void *thread) {
    usleep(50000);
    pthread_kill(*(pthread_t *)thread, SIGUSR1);
    return NULL;
}

int case_interrupted(void) {
    struct pair p = connected();
    struct sigaction action = {.sa_handler = nothing};
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
    int set = epoll_with(p.b, EPOLLIN);
    pthread_t own = pthread_self(), other;
    struct epoll_event event;
    char byte;
    CHECK(pthread_create(&other, NULL, later, &own) == 0);
    CHECK(epoll_wait(set, &event, 1, 10000) == -1 && errno == EINTR);
    pthread_join(other, NULL);
    CHECK(pthread_create(&other, NULL, later, &own) == 0);
    CHECK(recv(p.b, &byte, 1, 0) == -1 && errno == EINTR);
    pthread_join(other, NULL);
    return 0;
}

static void *echo(void *argument) {
    int fd = *(int *)argument;
    char bytes[100];
    ssize_t some;
    while ((some = recv(fd, bytes, sizeof bytes, 0)) > 0) send_all(fd, bytes, (size_t)some);
    return NULL;
}

int case_threads_of_one_process(void) {
    enum { PAIRS = 8 };
    struct pair pairs[PAIRS];
    pthread_t threads[PAIRS];
    for (int i = 0; i < PAIRS; i++) {
        pairs[i] = connected();
        CHECK(pthread_create(&threads[i], NULL, echo, &pairs[i].b) == 0);
    }
    for (int round = 0; round < 500; round++) {
        char bytes[20];
        int len = snprintf(bytes, sizeof bytes, "round %d", round);
        for (int i = 0; i < PAIRS; i++) send_all(pairs[i].a, bytes, (size_t)len);
        for (int i = 0; i < PAIRS; i++) {
            char answer[20];
            receive_all(pairs[i].a, answer, (size_t)len);
            CHECK(memcmp(bytes, answer, (size_t)len) == 0);
        }
    }
    for (int i = 0; i < PAIRS; i++) {
        close(pairs[i].a);
        pthread_join(threads[i], NULL);
    }
    return 0;
}

static void *receive_one(void *argument) {
    char byte;
    return (void *)(intptr_t)recv(*(int *)argument, &byte, 1, 0);
}

int case_blocked_thread_is_woken(void) {
    struct pair p = connected();
    pthread_t thread;
    void *result;
    for (int round = 0; round < 20; round++) {
        CHECK(pthread_create(&thread, NULL, receive_one, &p.b) == 0);
        usleep(round % 2 == 0 ? 3000 : 0);
        send_all(p.a, "x", 1);
        pthread_join(thread, &result);
        CHECK(result == (void *)1);
    }
    CHECK(pthread_create(&thread, NULL, receive_one, &p.b) == 0);
    usleep(20000);
    CHECK(shutdown(p.b, SHUT_RDWR) == 0);
    pthread_join(thread, &result);
    CHECK(result == (void *)0);
    return 0;
}

int case_idle_costs_nothing(void) {
    struct pair p = connected();
    int set = epoll_with(p.b, EPOLLIN);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, receive_one, &p.a) == 0);
    usleep(50000);
    double before = processor_seconds();
    CHECK(next_event(set, p.b, 1000) == 0);
    CHECK(processor_seconds() - before < 0.02);
    send_all(p.b, "x", 1);
    pthread_join(thread, NULL);
    return 0;
}

static volatile bool is_over;

static void *keep_busy(void *argument) {
    int fd = *(int *)argument;
    char bytes[64] = {0};
    while (!is_over) send_all(fd, bytes, sizeof bytes);
    return NULL;
}

// An epoll instance whose streams are never idle sees a new connection soon.
int case_accept_beside_busy_stream(void) {
    struct pair p = connected();
    struct sockaddr_in address;
    int listener = listening(&address), set = epoll_with(p.b, EPOLLIN);
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = 7};
    CHECK(epoll_ctl(set, EPOLL_CTL_ADD, listener, &event) == 0);
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, keep_busy, &p.a) == 0);
    char bytes[4096];
    for (int i = 0; i < 100; i++) CHECK(recv(p.b, bytes, sizeof bytes, 0) > 0);
    int client = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(connect(client, (struct sockaddr *)&address, sizeof address) == 0);
    double begin = seconds();
    do {
        CHECK(epoll_wait(set, &event, 1, 5000) == 1);
        if (event.data.u64 != 7) CHECK(recv(p.b, bytes, sizeof bytes, 0) > 0);
        CHECK(seconds() - begin < 5);
    } while (event.data.u64 != 7);
    is_over = true;
    shutdown(p.b, SHUT_RDWR);
    close(p.b);
    return 0;
}

int case_many_streams(void) {
    enum { STREAMS = 300 };
    static struct pair pairs[STREAMS];
    int set = epoll_create1(0);
    for (int i = 0; i < STREAMS; i++) {
        pairs[i] = connected();
        struct epoll_event event = {.events = EPOLLIN, .data.u32 = (uint32_t)i};
        CHECK(epoll_ctl(set, EPOLL_CTL_ADD, pairs[i].b, &event) == 0);
    }
    for (int round = 0; round < 20; round++) {
        for (int i = 0; i < STREAMS; i++) send_all(pairs[i].a, &round, sizeof round);
        for (int left = STREAMS; left > 0;) {
            struct epoll_event events[64];
            int count = epoll_wait(set, events, 64, 5000), value;
            CHECK(count > 0);
            for (int i = 0; i < count; i++, left--) {
                receive_all(pairs[events[i].data.u32].b, &value, sizeof value);
                CHECK(value == round);
            }
        }
    }
    return 0;
}

// Descriptors that are closed, and numbers that mean something else afterwards.
int case_closed_and_reused(void) {
    int set = epoll_create1(0);
    for (int round = 0; round < 100; round++) {
        struct pair p = connected();
        struct epoll_event event = {.events = EPOLLIN, .data.u64 = (uint64_t)round};
        CHECK(epoll_ctl(set, EPOLL_CTL_ADD, p.b, &event) == 0);
        send_all(p.a, "x", 1);
        CHECK(epoll_wait(set, &event, 1, 5000) == 1 && event.data.u64 == (uint64_t)round);
        close(p.b);
        close(p.a);
        CHECK(epoll_wait(set, &event, 1, 0) == 0);
        int ends[2];
        char byte;
        CHECK(pipe(ends) == 0 && write(ends[1], "p", 1) == 1 && read(ends[0], &byte, 1) == 1 && byte == 'p');
        close(ends[0]);
        close(ends[1]);
    }
    return 0;
}

// A set whose last stream is closed while it is ready reports nothing more.
int case_last_stream_closed(void) {
    for (int round = 0; round < 20; round++) {
        struct pair p = connected();
        int set = epoll_with(p.b, EPOLLIN);
        struct pollfd wait = {.fd = set, .events = POLLIN};
        CHECK(poll(&wait, 1, 0) == 0);
        send_all(p.a, "x", 1);
        CHECK(poll(&wait, 1, 5000) == 1);
        close(p.b);
        struct epoll_event event;
        CHECK(epoll_wait(set, &event, 1, 20) == 0);
        close(p.a);
        close(set);
    }
    return 0;
}

// A wait reports no stream twice, also where the kernel has something to say of the set.
int case_each_stream_once(void) {
    enum { COUNT = 3 };
    struct pair pairs[COUNT];
    int set = epoll_create1(0);
    for (int i = 0; i < COUNT; i++) {
        pairs[i] = connected();
        struct epoll_event event = {.events = EPOLLIN, .data.u32 = i};
        CHECK(epoll_ctl(set, EPOLL_CTL_ADD, pairs[i].b, &event) == 0);
    }
    for (int round = 0; round < 100; round++) {
        struct pollfd wait = {.fd = set, .events = POLLIN};
        for (int i = 0; i < COUNT; i++) send_all(pairs[i].a, "x", 1);
        CHECK(poll(&wait, 1, 5000) == 1);
        struct epoll_event events[4 * COUNT];
        unsigned seen = 0;
        while (seen != (1 << COUNT) - 1) {
            int count = epoll_wait(set, events, 4 * COUNT, 5000);
            unsigned now = 0;
            CHECK(count > 0);
            for (int i = 0; i < count; i++) {
                CHECK(!(now & 1 << events[i].data.u32));
                now |= 1 << events[i].data.u32;
            }
            seen |= now;
        }
        char byte;
        for (int i = 0; i < COUNT; i++) receive_all(pairs[i].b, &byte, 1);
        // Another wait is due to look at the kernel.
        usleep(60);
    }
    return 0;
}

// Space is told edge by edge where only the direction that is written has gone back to TCP, as after the peer's half close.
int case_edge_of_space_on_tcp(void) {
    struct pair p = connected();
    static unsigned char bytes[1 << 16], drained[1 << 16];
    nonblocking(p.a);
    CHECK(shutdown(p.b, SHUT_WR) == 0);
    int set = epoll_with(p.a, EPOLLOUT | EPOLLET);
    for (int round = 0; round < 5; round++) {
        CHECK(next_event(set, p.a, 5000) & EPOLLOUT);
        size_t sent = 0;
        for (ssize_t len; (len = send(p.a, bytes, sizeof bytes, 0)) > 0;) sent += len;
        CHECK(errno == EAGAIN && sent > 0);
        CHECK(next_event(set, p.a, 0) == 0);
        for (size_t left = sent; left > 0;) {
            ssize_t len = recv(p.b, drained, left < sizeof drained ? left : sizeof drained, 0);
            CHECK(len > 0);
            left -= len;
        }
    }
    return 0;
}

// A stream that leaves its rings while it is not in the set is reported again once it is.
int case_added_after_rings(void) {
    struct pair p = connected();
    int set = epoll_with(p.b, EPOLLIN);
    struct epoll_event event = {.events = EPOLLIN, .data.fd = p.b};
    char byte;
    send_all(p.a, "x", 1);
    CHECK(next_event(set, p.b, 5000) == EPOLLIN);
    receive_all(p.b, &byte, 1);
    CHECK(epoll_ctl(set, EPOLL_CTL_DEL, p.b, NULL) == 0);
    CHECK(epoll_ctl(set, EPOLL_CTL_DEL, p.b, NULL) == -1 && errno == ENOENT);
    // Both ends go back to TCP.
    CHECK(sockatmark(p.b) == 0);
    for (int round = 0; round < 3; round++) {
        send_all(p.a, "y", 1);
        receive_all(p.b, &byte, 1);
        send_all(p.b, "z", 1);
        receive_all(p.a, &byte, 1);
    }
    CHECK(epoll_ctl(set, EPOLL_CTL_ADD, p.b, &event) == 0);
    CHECK(epoll_wait(set, &event, 1, 0) == 0);
    send_all(p.a, "x", 1);
    CHECK(epoll_wait(set, &event, 1, 5000) == 1 && event.events == EPOLLIN && event.data.fd == p.b);
    receive_all(p.b, &byte, 1);
    CHECK(epoll_ctl(set, EPOLL_CTL_DEL, p.b, NULL) == 0 && epoll_wait(set, &event, 1, 0) == 0);
    return 0;
}

static bool is_writable_by_epoll(int fd, int milliseconds) {
    int set = epoll_with(fd, EPOLLOUT);
    bool is_writable = next_event(set, fd, milliseconds) == EPOLLOUT;
    close(set);
    return is_writable;
}

static bool is_writable_by_poll(int fd, int milliseconds) {
    struct pollfd one = {.fd = fd, .events = POLLOUT};
    return poll(&one, 1, milliseconds) == 1;
}

static bool is_writable_by_select(int fd, int milliseconds) {
    fd_set set;
    FD_ZERO(&set);
    FD_SET(fd, &set);
    struct timeval time = {.tv_sec = milliseconds / 1000};
    return select(fd + 1, NULL, &set, NULL, &time) == 1;
}

struct drained {
    int fd;
    size_t bytes;
};

static void *drain_later(void *argument) {
    struct drained *drained = argument;
    static unsigned char bytes[1 << 16];
    usleep(50000);
    for (size_t left = drained->bytes; left > 0;) {
        ssize_t len = recv(drained->fd, bytes, left < sizeof bytes ? left : sizeof bytes, 0);
        CHECK(len > 0);
        left -= len;
    }
    return NULL;
}

// Who asks whether there is space before each call never makes one in vain: nothing but the question tells that it waits.
int case_filled_to_the_last_byte(void) {
    static bool (*const ways[])(int, int) = {is_writable_by_epoll, is_writable_by_poll, is_writable_by_select};
    static unsigned char bytes[1 << 10];
    for (size_t way = 0; way < sizeof ways / sizeof *ways; way++) {
        struct pair p = connected();
        nonblocking(p.a);
        for (int round = 0; round < 5; round++) {
            struct drained drained = {.fd = p.b};
            while (ways[way](p.a, 0)) {
                ssize_t len = send(p.a, bytes, sizeof bytes, 0);
                CHECK(len > 0);
                drained.bytes += len;
            }
            pthread_t reader;
            CHECK(pthread_create(&reader, NULL, drain_later, &drained) == 0);
            double begin = seconds();
            CHECK(ways[way](p.a, 10000) && seconds() - begin < 5);
            CHECK(pthread_join(reader, NULL) == 0);
        }
    }
    return 0;
}

// Waits until so many descriptors of `set` are ready.
static void ready(int set, struct epoll_event *events, int count) {
    int found = epoll_wait(set, events, count, 5000);
    for (double limit = seconds() + 5; found < count && seconds() < limit;) found = epoll_wait(set, events, count, 0);
    CHECK(found == count);
}

// Connections are reported in the order in which something happened to them, ends included: a server that reads one message
// before another does so because it was sent before it. On TCP this is so as long as the writer stays on one processor.
int case_order_of_connections(void) {
    enum { COUNT = 70, ENDS = 3 };
    static struct pair pairs[COUNT + ENDS];
    static struct epoll_event events[COUNT];
    int set = epoll_create1(EPOLL_CLOEXEC), out_of_order = 0;
    for (int i = 0; i < COUNT + ENDS; i++) {
        pairs[i] = connected();
        struct epoll_event event = {.events = EPOLLIN, .data.u32 = i};
        CHECK(set >= 0 && epoll_ctl(set, EPOLL_CTL_ADD, pairs[i].b, &event) == 0);
    }
    char byte;
    for (uint32_t round = 0; round < 100; round++) {
        CHECK(epoll_wait(set, events, COUNT, 0) == 0);
        for (uint32_t i = 0; i < COUNT; i++) send_all(pairs[(i * 37 + round) % COUNT].a, "x", 1);
        ready(set, events, COUNT);
        for (uint32_t i = 0; i < COUNT; i++) {
            out_of_order += events[i].data.u32 != (i * 37 + round) % COUNT;
            receive_all(pairs[events[i].data.u32].b, &byte, 1);
        }
    }
    for (int end = 0; end < ENDS; end++) {
        int ending = COUNT + end, later = COUNT - 1 - end;
        CHECK(epoll_wait(set, events, COUNT, 0) == 0);
        CHECK((end == 0 ? shutdown(pairs[ending].a, SHUT_WR) : close(pairs[ending].a)) == 0);
        send_all(pairs[later].a, "x", 1);
        ready(set, events, 2);
        out_of_order += events[0].data.u32 != (uint32_t)ending;
        CHECK(recv(pairs[ending].b, &byte, 1, 0) == 0);
        receive_all(pairs[later].b, &byte, 1);
        CHECK(close(pairs[ending].b) == 0);
    }
    CHECK(out_of_order == 0 || !is_accelerated());
    return 0;
}
