// attack CASE [N [LEN]]: what an unprivileged tenant with default quotas can do to its neighbours, for as long as its standard
// input is open. Prints "ready" when it has begun.
//
//   slow N           N queue pairs write to private memory whose process holds the lock of its address space nearly always
//                    (mprotect of very much memory, 450 ms at a time)
//   multicast N LEN  N queue pairs send empty datagrams to a group with LEN members
//   churn N          N connections register and deregister
//   pinned N         programs with N MiB of registered memory end, one after another
//   memfd N          memory of N MiB is sent with messages that are refused, one after another
//   writes N LEN     N queue pairs write LEN bytes each, all the time
//   errors N         N queue pairs in error are closed at once, again and again
//   dealloc N        a protection domain with N keys is deallocated, in vain, again and again
//   flood            datagrams to the plain RoCEv2 port of the own address
//   idle N           N contexts that do nothing
#define _GNU_SOURCE
#include "verbs.h"
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <netinet/udp.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MIB = 1 << 20 };

static void ready(void) {
    puts("ready");
    fflush(stdout);
}

// Ends the program with its standard input.
static void *watch(void *arg) {
    char byte;
    (void)arg;
    while (read(STDIN_FILENO, &byte, 1) > 0) {}
    _exit(0);
}

static void thread(void *(*run)(void *), void *arg) {
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, run, arg) == 0);
}

// Whether the standard input has ended, for programs that must not have threads when they fork.
static bool is_over(void) {
    struct pollfd p = {.fd = STDIN_FILENO, .events = POLLIN};
    return poll(&p, 1, 0) == 1;
}

// More queue pairs on the sides' own context, as sides of their own. Connected pairs share one completion queue.
static struct side *more(const struct side *first, int count) {
    struct side *sides = calloc((size_t)count, sizeof *sides);
    for (int i = 0; i < count; i++) {
        sides[i] = *first;
        sides[i].qp = NULL;
        side_open_qp(&sides[i]);
    }
    return sides;
}

static double hold_lock(char *at, size_t len) {
    static bool write;
    write = !write;
    double begin = now_seconds();
    CHECK(mprotect(at, len, write ? PROT_READ | PROT_WRITE : PROT_READ) == 0);
    return now_seconds() - begin;
}

static char *zeros;
static size_t zeros_len = 1ull << 30;

static void *hold(void *arg) {
    (void)arg;
    for (;;) hold_lock(zeros, zeros_len);
    return NULL;
}

static void write_there(struct side *sides, int i, char *at, struct ibv_mr *mr) {
    struct request r;
    request(&r, &sides[i], IBV_WR_RDMA_WRITE, 0, 8);
    r.wr.wr_id = (uint64_t)i;
    r.wr.wr.rdma.remote_addr = (uintptr_t)at + 4096 * (unsigned)i;
    r.wr.wr.rdma.rkey = mr->rkey;
    post_send(&sides[i], &r.wr);
}

static void slow(int count) {
    static const double TIME = 0.45;
    struct options o = default_options(IBV_QPT_RC);
    o.cqe = 1 << 12;
    struct side first;
    side_open(&first, &o);
    char *private = mmap(NULL, MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(private, 1, MIB);
    struct ibv_mr *mr = ibv_reg_mr(first.pd, private, MIB, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_ON_DEMAND);
    CHECK(mr);
    struct side *a = more(&first, count), *b = more(&first, count);
    static const size_t MOST = 128ull << 30;
    zeros = mmap(NULL, MOST, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(zeros != MAP_FAILED && madvise(zeros, MOST, MADV_NOHUGEPAGE) == 0);
    // Page tables only; as many as take the time.
    for (size_t have = 0;;) {
        CHECK(madvise(zeros + have, zeros_len - have, MADV_POPULATE_READ) == 0);
        have = zeros_len;
        hold_lock(zeros, zeros_len);
        double took = hold_lock(zeros, zeros_len);
        if (took > 0.8 * TIME || zeros_len == MOST) break;
        double factor = TIME / took < 4 ? TIME / took : 4;
        zeros_len = (size_t)((double)zeros_len * factor) & ~(size_t)4095;
        if (zeros_len > MOST) zeros_len = MOST;
    }
    thread(hold, NULL);
    for (int i = 0; i < count; i++) connect_sides(&a[i], &b[i]);
    ready();
    for (int i = 0; i < count; i++) write_there(a, i, private, mr);
    for (;;) {
        struct ibv_wc wc;
        if (ibv_poll_cq(first.cq, 1, &wc) != 1) {
            usleep(1000);
            continue;
        }
        int i = (int)wc.wr_id;
        if (wc.status != IBV_WC_SUCCESS) {
            side_open_qp(&a[i]);
            side_open_qp(&b[i]);
            connect_sides(&a[i], &b[i]);
        }
        write_there(a, i, private, mr);
    }
}

// Posts several requests, the last of which is signaled with the number of the side.
static void post_chain(struct side *sides, int number, enum ibv_wr_opcode opcode, size_t len) {
    enum { MOST = 32 };
    struct request requests[MOST];
    int count = len > 4096 ? 2 : MOST;
    for (int n = 0; n < count; n++) {
        struct ibv_send_wr *wr = &request(&requests[n], &sides[number], opcode, 0, len)->wr;
        bool is_last = n + 1 == count;
        wr->wr_id = (uint64_t)number;
        wr->num_sge = len != 0;
        wr->send_flags = is_last ? IBV_SEND_SIGNALED : 0;
        wr->next = is_last ? NULL : &requests[n + 1].wr;
    }
    post_send(&sides[number], &requests[0].wr);
}

// Posts again on all queue pairs whatever has ended.
static void keep_busy(struct side *sides, int count, enum ibv_wr_opcode opcode, size_t len) {
    for (int i = 0; i < count; i++) post_chain(sides, i, opcode, len);
    ready();
    for (;;) {
        struct ibv_wc wc;
        if (ibv_poll_cq(sides->cq, 1, &wc) != 1) continue;
        CHECK(wc.status == IBV_WC_SUCCESS, "%s", ibv_wc_status_str(wc.status));
        post_chain(sides, (int)wc.wr_id, opcode, len);
    }
}

static void writes(int count, size_t len) {
    struct options o = default_options(IBV_QPT_RC);
    o.cqe = 1 << 16;
    struct side first;
    side_open(&first, &o);
    struct side *a = more(&first, count), *b = more(&first, count);
    for (int i = 0; i < count; i++) connect_sides(&a[i], &b[i]);
    keep_busy(a, count, IBV_WR_RDMA_WRITE, len);
}

static void multicast(int senders, int members) {
    struct options o = default_options(IBV_QPT_UD);
    o.cqe = 1 << 16;
    struct side first;
    side_open(&first, &o);
    union ibv_gid group = {.raw = {0xff, 0x0e, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 239, 1, 2, 3}};
    struct address all = {.gid = group, .qpn = 0xffffff};
    struct side *sides = more(&first, members);
    for (int i = 0; i < members; i++) {
        CHECK(ibv_attach_mcast(sides[i].qp, &group, 0) == 0, "member %d", i);
        side_connect(&sides[i], &all);
    }
    keep_busy(sides, senders, IBV_WR_SEND, 0);
}

static void *register_again(void *arg) {
    struct side *s = arg;
    for (;;) {
        struct ibv_mr *mr = ibv_reg_mr(s->pd, s->buffer, 4096, IBV_ACCESS_LOCAL_WRITE);
        CHECK(mr && ibv_dereg_mr(mr) == 0);
    }
}

static void churn(int count) {
    struct options o = default_options(IBV_QPT_RC);
    for (int i = 0; i < count; i++) {
        struct side *s = malloc(sizeof *s);
        side_open(s, &o);
        thread(register_again, s);
    }
    ready();
    pause();
}

// Runs `once` in children, one after another.
static void again_in_children(void (*once)(int), int n) {
    for (bool is_first = true; !is_over(); is_first = false) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            once(n);
            _exit(0);
        }
        if (is_first) ready();
        CHECK(waitpid(child, NULL, 0) == child);
    }
}

static void pin_and_end(int mib) {
    struct ibv_pd *pd = ibv_alloc_pd(open_device());
    size_t len = (size_t)mib * MIB;
    char *at = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED && ibv_reg_mr(pd, at, len, IBV_ACCESS_LOCAL_WRITE));
}

static void send_memory(int mib) {
    const char *endpoint = getenv("RDMESH_ENDPOINT"), *library = getenv("LD_PRELOAD");
    CHECK(endpoint || library);
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    char *copy = strdup(endpoint ? endpoint : library);
    snprintf(to.sun_path, sizeof to.sun_path, "%s/verbs.sock", endpoint ? copy : dirname(copy));
    int s = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), fd = memfd_create("much", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    CHECK(s >= 0 && connect(s, (struct sockaddr *)&to, sizeof to) == 0);
    CHECK(fd >= 0 && fallocate(fd, 0, 0, (off_t)mib * MIB) == 0);
    CHECK(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0);
    // A command on a connection without a context.
    uint32_t head[4] = {3, 3, 0, 0};
    struct iovec part = {head, sizeof head};
    union {
        struct cmsghdr head;
        char room[CMSG_SPACE(sizeof(int))];
    } control = {.head = {.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof(int))}};
    memcpy(CMSG_DATA(&control.head), &fd, sizeof fd);
    struct msghdr m = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};
    CHECK(sendmsg(s, &m, MSG_NOSIGNAL) >= 0);
    close(fd); // the router's is the last
    char answer[4096];
    CHECK(recv(s, answer, sizeof answer, 0) >= 0 || errno == ECONNRESET);
}

static void close_in_error(int count) {
    struct options o = default_options(IBV_QPT_RC);
    o.depth = 16;
    o.cqe = 1 << 16;
    struct side first;
    side_open(&first, &o);
    struct side *sides = more(&first, count - 1);
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
    for (int i = 0; i < count - 1; i++) CHECK(ibv_modify_qp(sides[i].qp, &attr, IBV_QP_STATE) == 0);
}

static void dealloc(int keys) {
    struct options o = default_options(IBV_QPT_RC);
    struct side first;
    side_open(&first, &o);
    for (int i = 1; i < keys; i++) CHECK(ibv_reg_mr(first.pd, first.buffer, 4096, IBV_ACCESS_LOCAL_WRITE), "key %d", i);
    ready();
    for (;;) CHECK(ibv_dealloc_pd(first.pd) == EBUSY);
}

static void flood(void) {
    struct options o = default_options(IBV_QPT_RC);
    struct side first;
    side_open(&first, &o);
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(4791)};
    memcpy(&to.sin_addr, &first.gid.raw[12], 4);
    int s = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0), segment = 20;
    CHECK(s >= 0 && connect(s, (struct sockaddr *)&to, sizeof to) == 0);
    CHECK(setsockopt(s, IPPROTO_UDP, UDP_SEGMENT, &segment, sizeof segment) == 0);
    // 64 datagrams a call, each of them shaped as a management datagram's beginning.
    static unsigned char trains[64 * 20];
    for (size_t i = 0; i < sizeof trains; i += 20) memcpy(trains + i, "\x64\x40\xff\xff\0\0\0\1", 8);
    ready();
    for (;;) (void)!send(s, trains, sizeof trains, 0);
}

static void idle(int count) {
    struct rlimit limit;
    CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
    limit.rlim_cur = limit.rlim_max;
    CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    for (int i = 0; i < count; i++) open_device();
    ready();
    pause();
}

int main(int argc, char **argv) {
    const char *name = argc > 1 ? argv[1] : "";
    int n = argc > 2 ? atoi(argv[2]) : 0;
    int len = argc > 3 ? atoi(argv[3]) : 0;
    if (strcmp(name, "pinned") == 0) return again_in_children(pin_and_end, n), 0;
    if (strcmp(name, "memfd") == 0) return again_in_children(send_memory, n), 0;
    if (strcmp(name, "errors") == 0) return again_in_children(close_in_error, n), 0;
    thread(watch, NULL);
    if (strcmp(name, "slow") == 0) slow(n);
    if (strcmp(name, "multicast") == 0) multicast(n, len);
    if (strcmp(name, "churn") == 0) churn(n);
    if (strcmp(name, "writes") == 0) writes(n, (size_t)len);
    if (strcmp(name, "dealloc") == 0) dealloc(n);
    if (strcmp(name, "flood") == 0) flood();
    if (strcmp(name, "idle") == 0) idle(n);
    fprintf(stderr, "usage: attack slow|multicast|churn|pinned|memfd|writes|errors|dealloc|flood|idle [N [LEN]]\n");
    return 2;
}
