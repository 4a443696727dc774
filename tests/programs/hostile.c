// hostile MODE SEED SECONDS: a tenant that means harm, again and again until the time is over. It may die of what it
// does; nobody else may.
//
//   rings    random bytes over its queue rings and its context page, with doorbells, during transfers
//   stream   random and nearly right messages to the router, with random descriptors
//   commands random arguments through the kernel ABI (write() on the command descriptor)
//   fds      truncates, grows and closes what it was given
//   holes    takes pages out of its memory, its queues and its context page, during transfers
//   die      sets up and transfers at random and exits without a word somewhere on the way
#define _GNU_SOURCE
#include "verbs.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <rdma/ib_user_verbs.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MAX_PARTS = 64, VERSION = 6, OPEN = 1 };

static uint64_t state;

static uint64_t chance(void) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

static size_t below(size_t n) {
    return (size_t)(chance() % n);
}

struct part {
    unsigned char *at;
    size_t len;
};

// The mappings that the router made for us: shared memfds of a few megabytes at most (the arena is not for scribbling).
static int shared_parts(struct part parts[MAX_PARTS]) {
    FILE *maps = fopen("/proc/self/maps", "r");
    CHECK(maps);
    char line[512];
    int count = 0;
    while (count < MAX_PARTS && fgets(line, sizeof line, maps)) {
        unsigned long from, to;
        char permissions[5];
        if (sscanf(line, "%lx-%lx %4s", &from, &to, permissions) != 3 || !strstr(line, "/memfd:")) continue;
        if (strcmp(permissions, "rw-s") != 0 || to - from > 16 << 20 || strstr(line, "arena")) continue;
        parts[count++] = (struct part){(unsigned char *)from, to - from};
    }
    fclose(maps);
    return count;
}

static void post_something(struct side *s) {
    static const enum ibv_wr_opcode ops[] = {IBV_WR_SEND, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ, IBV_WR_SEND_WITH_IMM,
                                             IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_LOCAL_INV, IBV_WR_SEND_WITH_INV};
    struct request r;
    request(&r, s, ops[below(7)], below(4096), below(1 << 16));
    if (below(4) == 0) r.sge.lkey = (uint32_t)chance();
    if (below(4) == 0) r.sge.addr = chance();
    if (below(8) == 0) r.sge.length = (uint32_t)chance();
    if (below(4) == 0) r.wr.wr.rdma.remote_addr = chance();
    if (below(8) == 0) r.wr.wr.rdma.rkey = (uint32_t)chance();
    try_post_send(s, &r.wr);
}

static void reap(struct side *s) {
    struct ibv_wc wc[16];
    for (int i = 0; i < 8 && ibv_poll_cq(s->cq, 16, wc) > 0; i++) {}
}

static void scribble(struct part *p) {
    static const uint64_t favourites[] = {0, 1, 0xffffffff, 0x80000000, UINT64_MAX, 0x7fffffff};
    size_t burst = 1 + below(64);
    // Most blows go to the head of the ring, where the indices are, and to the first elements.
    size_t span = below(2) ? p->len : p->len < 1024 ? p->len : 1024;
    for (size_t i = 0; i < burst; i++) {
        size_t at = below(span - 8) & ~(size_t)(below(2) ? 3 : 0);
        uint64_t value = below(3) ? chance() : favourites[below(6)];
        memcpy(p->at + at, &value, below(2) ? 4 : 8);
    }
}

// A queue pair that claims to belong to somebody else's connection: of the neighbour 10.7.0.2, with a number near ours.
static void connect_to_stranger(struct side *s) {
    struct address stranger = side_address(s);
    stranger.gid.raw[15] = 2;
    stranger.qpn = 16 + (uint32_t)below(16);
    stranger.rkey = (uint32_t)below(1 << 16);
    side_connect(s, &stranger);
}

static void rings(void) {
    struct part parts[MAX_PARTS];
    struct side a, b;
    struct options o = default_options(below(2) ? IBV_QPT_RC : below(2) ? IBV_QPT_UC : IBV_QPT_UD);
    o.srq = below(3) == 0;
    side_open(&a, &o);
    side_open(&b, &o);
    if (below(3)) {
        connect_sides(&a, &b);
    } else {
        connect_to_stranger(&a);
        connect_to_stranger(&b);
    }
    int count = shared_parts(parts);
    CHECK(count > 0);
    for (int i = 0; i < 400; i++) {
        post_something(below(2) ? &a : &b);
        if (i > 50) scribble(&parts[below((size_t)count)]);
        struct ibv_recv_wr wr = {.wr_id = chance()}, *bad;
        if (!o.srq) ibv_post_recv(b.qp, &wr, &bad);
    }
    ibv_destroy_qp(a.qp); // the rest goes with the process, as of one that crashed
}

static int connect_again(void) {
    const char *endpoint = getenv("RDMESH_ENDPOINT"), *library = getenv("LD_PRELOAD");
    CHECK(endpoint || library);
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    if (endpoint) {
        snprintf(to.sun_path, sizeof to.sun_path, "%s/verbs.sock", endpoint);
    } else {
        char *copy = strdup(library);
        snprintf(to.sun_path, sizeof to.sun_path, "%s/verbs.sock", dirname(copy));
        free(copy);
    }
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    CHECK(fd >= 0);
    if (connect(fd, (struct sockaddr *)&to, sizeof to) < 0) {
        CHECK(errno == EAGAIN || errno == ECONNREFUSED || errno == EMFILE, "%s", to.sun_path);
        close(fd);
        return -1;
    }
    return fd;
}

// A request that is right in its head and random after it.
static size_t nearly_right(unsigned char *message, size_t room) {
    uint32_t *words = (uint32_t *)message;
    size_t len = 16 + 8 + 4 * below(60);
    for (size_t i = 0; i < room / 4; i++) words[i] = below(3) ? (uint32_t)below(8) : (uint32_t)chance();
    words[0] = VERSION;
    words[1] = below(16) ? 3 : (uint32_t)below(6);           // kind: mostly a verbs command
    words[2] = (uint32_t)(len - 16);                         // bytes of the command
    words[3] = below(16) ? 0 : (uint32_t)below(1000);        // segments
    words[4] = (uint32_t)below(64) | (below(8) ? 0 : 0x80000000);
    words[5] = (uint32_t)((len - 16) / 4) | (uint32_t)below(64) << 16;
    if (below(8) == 0) len = below(room);
    return len;
}

// Opens the device as the library does: with memory for a context page and for queues.
static void open_right(int fd) {
    uint32_t request[4] = {VERSION, OPEN, 0, 0};
    int fds[2] = {memfd_create("page", MFD_CLOEXEC | MFD_ALLOW_SEALING), memfd_create("queues", MFD_CLOEXEC | MFD_ALLOW_SEALING)};
    CHECK(ftruncate(fds[0], 256 << 10) == 0 && fallocate(fds[0], 0, 0, 256 << 10) == 0 && ftruncate(fds[1], (off_t)1 << 60) == 0);
    union {
        struct cmsghdr head;
        char room[CMSG_SPACE(sizeof fds)];
    } control = {.head = {.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof fds)}};
    for (int i = 0; i < 2; i++) CHECK(fcntl(fds[i], F_ADD_SEALS, F_SEAL_SHRINK) == 0);
    memcpy(CMSG_DATA(&control.head), fds, sizeof fds);
    struct iovec part = {request, sizeof request};
    struct msghdr m = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    sendmsg(fd, &m, MSG_NOSIGNAL);
    if (below(8) == 0) fallocate(fds[0], FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 256 << 10);
    close(fds[0]);
    close(fds[1]);
}

static void send_with_descriptors(int fd, void *message, size_t len) {
    union {
        struct cmsghdr head;
        char room[CMSG_SPACE(8 * sizeof(int))];
    } control = {0};
    struct iovec part = {message, len};
    struct msghdr m = {.msg_iov = &part, .msg_iovlen = 1};
    int count = below(4) ? 0 : 1 + (int)below(8);
    if (count) {
        control.head = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN((size_t)count * sizeof(int))};
        int fds[8];
        for (int i = 0; i < 8; i++) fds[i] = below(2) ? fd : STDIN_FILENO;
        memcpy(CMSG_DATA(&control.head), fds, (size_t)count * sizeof(int));
        m.msg_control = &control;
        m.msg_controllen = CMSG_SPACE((size_t)count * sizeof(int));
    }
    sendmsg(fd, &m, MSG_DONTWAIT | MSG_NOSIGNAL);
}

static void stream(void) {
    static unsigned char message[65536], reply[65536];
    int fd = connect_again();
    if (fd < 0) return;
    if (below(8)) open_right(fd);
    size_t messages = below(200);
    for (size_t i = 0; i < messages; i++) {
        size_t len = nearly_right(message, below(64) ? 256 : sizeof message);
        send_with_descriptors(fd, message, len);
        if (below(3)) recv(fd, reply, sizeof reply, MSG_DONTWAIT); // descriptors in it are dropped by the kernel
    }
    if (below(4) == 0) shutdown(fd, below(2) ? SHUT_WR : SHUT_RD);
    close(fd);
}

static void commands(void) {
    struct side a, b;
    struct options o = default_options(IBV_QPT_RC);
    open_pair(&a, &b, &o);
    for (int i = 0; i < 300; i++) {
        uint32_t words[64], response[256];
        for (int w = 0; w < 64; w++) words[w] = below(4) ? (uint32_t)below(6) : (uint32_t)chance();
        size_t count = 4 + below(60);
        struct ib_uverbs_cmd_hdr head = {.command = (uint32_t)below(50), .in_words = (uint16_t)count, .out_words = (uint16_t)below(256)};
        if (below(3) == 0) head.command |= 0x80000000;
        uint64_t at = (uintptr_t)response;
        memcpy(words, &head, sizeof head);
        memcpy(words + 2, &at, 8);
        if (write(a.context->cmd_fd, words, 4 * count) < 0 && errno == EPIPE) break;
        if (below(10) == 0) post_something(&a);
        reap(&a);
    }
    close(a.context->cmd_fd);
    close(b.context->cmd_fd);
}

static void spoil_descriptors(void) {
    for (int fd = 3; fd < 256; fd++) {
        char path[64], target[128] = "";
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        if (readlink(path, target, sizeof target - 1) < 0) continue;
        if (strncmp(target, "/memfd:", 7) == 0) {
            CHECK(ftruncate(fd, 0) < 0, "%s could be truncated", target);
            CHECK(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE) < 0, "%s could be sealed against the router", target);
            fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096);
        }
        if (below(4) == 0) close(fd);
    }
}

static void fds(void) {
    struct side a, b;
    struct options o = default_options(IBV_QPT_RC);
    o.events = true;
    open_pair(&a, &b, &o);
    for (int i = 0; i < 30; i++) post_something(&a);
    spoil_descriptors();
    for (int i = 0; i < 30; i++) post_something(&b);
    struct part parts[MAX_PARTS];
    int count = shared_parts(parts);
    for (int i = 0; i < count; i++)
        if (below(2)) munmap(parts[i].at, parts[i].len);
    munmap(a.buffer, a.options.len / 2);
    for (int fd = 3; fd < 1024; fd++) close(fd);
    if (below(2)) _exit(0);
}

// Its memfds: registered memory, queues, context pages.
static int memfds(int fds[MAX_PARTS]) {
    int count = 0;
    for (int fd = 3; fd < 1024 && count < MAX_PARTS; fd++) {
        char path[64], target[128] = "";
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        if (readlink(path, target, sizeof target - 1) > 0 && strncmp(target, "/memfd:", 7) == 0) fds[count++] = fd;
    }
    return count;
}

// Takes out a page, or all of them, of those that there are.
static void take_pages(int fd) {
    off_t at = lseek(fd, below(2) ? 0 : (off_t)below(1 << 20), SEEK_DATA);
    if (at < 0) return;
    off_t len = below(4) ? 4096 * (1 + (off_t)below(16)) : (off_t)1 << 40;
    fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, at & ~4095, len);
}

static void holes(void) {
    struct side a, b;
    struct options o = default_options(below(2) ? IBV_QPT_RC : IBV_QPT_UC);
    open_pair(&a, &b, &o);
    int fds[MAX_PARTS], count = memfds(fds);
    CHECK(count > 0);
    for (int i = 0; i < 400; i++) {
        post_something(below(2) ? &a : &b);
        if (i > 50 && below(4) == 0) take_pages(fds[below((size_t)count)]);
        struct ibv_recv_wr wr = {.wr_id = chance()}, *bad;
        ibv_post_recv(b.qp, &wr, &bad);
        reap(&a);
    }
}

static void die(void) {
    // A clock of its own kills it at any instant; the loop only makes sure that there is something to die in.
    alarm(10);
    struct itimerspec when = {.it_value = {.tv_nsec = (long)(1000 + below(60000000))}};
    timer_t timer;
    struct sigevent kill_me = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGKILL};
    CHECK(timer_create(CLOCK_MONOTONIC, &kill_me, &timer) == 0 && timer_settime(timer, 0, &when, NULL) == 0);
    for (;;) {
        struct side a, b;
        struct options o = default_options(below(2) ? IBV_QPT_RC : IBV_QPT_UD);
        o.srq = below(2);
        o.events = below(2);
        open_pair(&a, &b, &o);
        for (size_t i = below(100); i; i--) {
            post_something(&a);
            reap(&a);
        }
        if (below(2)) close_pair(&a, &b);
    }
}

static const struct {
    const char *name;
    void (*run)(void);
} MODES[] = {{"rings", rings}, {"stream", stream}, {"commands", commands}, {"fds", fds}, {"holes", holes}, {"die", die}};

// Each round is a process of its own, since most do not survive what they do.
static void one_round(void (*run)(void), uint64_t seed) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        state = seed * 0x9e3779b97f4a7c15 + 1;
        alarm(20); // for one that waits for what it has broken
        run();
        _exit(0);
    }
    CHECK(waitpid(child, NULL, 0) == child);
}

int main(int argc, char **argv) {
    CHECK(argc == 4);
    double end = now_seconds() + atof(argv[3]);
    for (size_t i = 0; i < sizeof MODES / sizeof *MODES; i++) {
        if (strcmp(argv[1], MODES[i].name) != 0) continue;
        uint64_t rounds = 0;
        for (uint64_t seed = strtoull(argv[2], NULL, 10) << 32; now_seconds() < end; rounds++) one_round(MODES[i].run, seed + rounds);
        printf("%llu rounds\n", (unsigned long long)rounds);
        return 0;
    }
    return 2;
}
