// Cases about TCP sockets: `sockets --list`, `sockets CASE`.
#include "sockets.h"
#include <arpa/inet.h>

void fail(const char *file, int line, const char *condition) {
    fprintf(stderr, "%s:%d: does not hold: %s (errno %d: %s)\n", file, line, condition, errno, strerror(errno));
    exit(1);
}

bool is_accelerated(void) {
    const char *expected = getenv("SOCKETS_EXPECT");
    return expected != NULL && strcmp(expected, "rings") == 0;
}

int listening(struct sockaddr_in *address) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    *address = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof *address;
    CHECK(fd >= 0 && bind(fd, (struct sockaddr *)address, len) == 0 && listen(fd, 64) == 0);
    CHECK(getsockname(fd, (struct sockaddr *)address, &len) == 0);
    return fd;
}

static uint64_t written(int fd) {
    unsigned char info[256] = {0};
    socklen_t len = sizeof info;
    uint64_t acked;
    int queued;
    CHECK(getsockopt(fd, IPPROTO_TCP, TCP_INFO, info, &len) == 0);
    memcpy(&acked, info + 120, sizeof acked); // tcpi_bytes_acked
    // The kernel's own answer: the library adds what is in its rings.
    CHECK(ioctl(fd, TIOCOUTQ, &queued) == 0);
    return acked + (uint64_t)queued;
}

bool is_on_ring(int from, int to) {
    unsigned char byte = 0x55;
    uint64_t before = written(from);
    send_all(from, &byte, 1);
    receive_all(to, &byte, 1);
    return written(from) == before;
}

bool is_asked_on_ring(int fd) {
    unsigned char byte = 0x33;
    uint64_t before = written(fd);
    send_all(fd, &byte, 1);
    receive_all(fd, &byte, 1);
    return written(fd) == before;
}

void warm_up(struct pair p) {
    double begin = seconds();
    for (int round = 0; round < 12; round++) {
        is_on_ring(p.a, p.b);
        is_on_ring(p.b, p.a);
    }
    while (is_accelerated() && !(is_on_ring(p.a, p.b) && is_on_ring(p.b, p.a))) {
        CHECK(seconds() - begin < 10);
        usleep(1000);
    }
}

struct pair fresh(void) {
    struct sockaddr_in address;
    int listener = listening(&address);
    struct pair p = {.a = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    CHECK(connect(p.a, (struct sockaddr *)&address, sizeof address) == 0);
    p.b = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    CHECK(p.b >= 0);
    close(listener);
    return p;
}

struct pair connected(void) {
    struct pair p = fresh();
    warm_up(p);
    return p;
}

void nonblocking(int fd) { CHECK(fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK) == 0); }

void send_all(int fd, const void *bytes, size_t len) {
    for (size_t done = 0; done < len;) {
        ssize_t sent = send(fd, (const char *)bytes + done, len - done, MSG_NOSIGNAL);
        CHECK(sent > 0);
        done += (size_t)sent;
    }
}

void receive_all(int fd, void *bytes, size_t len) {
    for (size_t done = 0; done < len;) {
        ssize_t received = recv(fd, (char *)bytes + done, len - done, 0);
        if (received < 0 && errno == EAGAIN) {
            struct pollfd wait = {.fd = fd, .events = POLLIN};
            CHECK(poll(&wait, 1, 10000) == 1);
            continue;
        }
        CHECK(received > 0);
        done += (size_t)received;
    }
}

static unsigned char byte_at(uint64_t at) { return (unsigned char)((at * 0x9e3779b97f4a7c15u) >> 56); }

void fill(unsigned char *bytes, size_t len, uint64_t at) {
    for (size_t i = 0; i < len; i++) bytes[i] = byte_at(at + i);
}

void check(const unsigned char *bytes, size_t len, uint64_t at) {
    for (size_t i = 0; i < len; i++) CHECK(bytes[i] == byte_at(at + i));
}

double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

double processor_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

#define ENTRY(name) {#name, case_##name},
static const struct {
    const char *name;
    int (*run)(void);
} ALL[] = {CASES(ENTRY)};

int main(int argc, char **argv) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc != 2) return 2;
    alarm(60);
    for (size_t i = 0; i < sizeof ALL / sizeof *ALL; i++) {
        if (strcmp(argv[1], "--list") == 0) puts(ALL[i].name);
        else if (strcmp(argv[1], ALL[i].name) == 0) return ALL[i].run();
    }
    return strcmp(argv[1], "--list") == 0 ? 0 : 2;
}
