// flow TYPE COUNT DEPTH LEN: COUNT queue pairs of TYPE (rc, uc, ud) in one context, which send messages of LEN bytes, DEPTH under
// way on each, and sleep on completion events.
//
// It prints "local GID RKEY ADDR QPN..."; then it obeys, line by line through its standard input:
//   connect GID RKEY ADDR QPN...   to the queue pairs of another one
//   pour OP SECONDS BYTES          OP: send, write or read; at most so many bytes a second, sent in portions of 1.25 ms each, or
//                                  0 for as many as it may: "poured BYTES SECONDS ALL", what was completed within so many
//                                  seconds after the beginning, and all that was sent
//   sink                           posts receives until the next line: "sunk BYTES"
//   quit                           exits 0
#define _GNU_SOURCE
#include "verbs.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

// Before a measurement: what a token bucket has saved is used up, and speeds have settled.
static const double WARM_UP = 0.3;
// Of one portion of a program that paces itself, in seconds: an eighth of a token bucket's usual burst.
static const double PORTION = 0.00125;

// Before what a UD queue pair receives.
enum { GRH = 40 };

static struct side *sides;
static int count, depth;
static size_t len;

static void open_sides(enum ibv_qp_type type) {
    struct options o = default_options(type);
    o.depth = (uint32_t)depth;
    o.cqe = (uint32_t)(count * depth);
    o.len = len + GRH;
    o.sges = 1;
    o.inline_len = 0;
    o.events = true;
    sides = calloc((size_t)count, sizeof *sides);
    side_open(&sides[0], &o);
    for (int i = 1; i < count; i++) {
        sides[i] = sides[0];
        sides[i].qp = NULL;
        side_open_qp(&sides[i]);
    }
    int fd = sides[0].channel->fd;
    CHECK(fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK) == 0);
}

static void print_local(void) {
    struct address at = side_address(&sides[0]);
    printf("local ");
    for (int i = 0; i < 16; i++) printf("%02x", at.gid.raw[i]);
    printf(" %u %llu", at.rkey, (unsigned long long)at.addr);
    for (int i = 0; i < count; i++) printf(" %u", sides[i].qp->qp_num);
    puts("");
}

static void connect_to(char *arguments) {
    char *word = strtok(arguments, " ");
    struct address remote;
    for (int i = 0; i < 16; i++) {
        unsigned byte;
        CHECK(word && sscanf(word + 2 * i, "%2x", &byte) == 1);
        remote.gid.raw[i] = (uint8_t)byte;
    }
    remote.rkey = (uint32_t)strtoul(strtok(NULL, " "), NULL, 10);
    remote.addr = strtoull(strtok(NULL, " "), NULL, 10);
    for (int i = 0; i < count; i++) {
        CHECK((word = strtok(NULL, " ")), "%d queue pairs there", i);
        remote.qpn = (uint32_t)strtoul(word, NULL, 10);
        side_connect(&sides[i], &remote);
    }
    puts("connected");
}

static enum ibv_wr_opcode opcode(const char *name) {
    if (strcmp(name, "write") == 0) return IBV_WR_RDMA_WRITE;
    if (strcmp(name, "read") == 0) return IBV_WR_RDMA_READ;
    CHECK(strcmp(name, "send") == 0, "%s", name);
    return IBV_WR_SEND;
}

static void post(int pair, enum ibv_wr_opcode op) {
    struct request r;
    request(&r, &sides[pair], op, 0, len)->wr.wr_id = (uint64_t)pair;
    post_send(&sides[pair], &r.wr);
}

static void post_receive(int pair) {
    struct ibv_sge sge = {(uintptr_t)sides[0].buffer, (uint32_t)(len + GRH), sides[0].mr->lkey};
    post_recv(&sides[pair], (uint64_t)pair, &sge, 1);
}

// Waits for an event of the completion queue, which is armed, at most until then; whether `other` can be read.
static bool wait_for_event(double until, int other) {
    struct pollfd fds[] = {{.fd = sides[0].channel->fd, .events = POLLIN}, {.fd = other, .events = POLLIN}};
    double left = until - now_seconds();
    if (left < 0) left = 0;
    struct timespec t = {.tv_sec = (time_t)left, .tv_nsec = (long)((left - (double)(time_t)left) * 1e9)};
    int n = ppoll(fds, other < 0 ? 1 : 2, &t, NULL);
    CHECK(n >= 0);
    struct ibv_cq *cq;
    void *context;
    while (ibv_get_cq_event(sides[0].channel, &cq, &context) == 0) ibv_ack_cq_events(cq, 1);
    return n > 0 && other >= 0 && (fds[1].revents & (POLLIN | POLLHUP));
}

// Reaps what there is into `wcs`; where there is nothing, the completion queue is armed.
static int reap(struct ibv_wc *wcs, int most) {
    int n = ibv_poll_cq(sides[0].cq, most, wcs);
    if (n == 0) {
        CHECK(ibv_req_notify_cq(sides[0].cq, 0) == 0);
        n = ibv_poll_cq(sides[0].cq, most, wcs);
    }
    CHECK(n >= 0);
    for (int i = 0; i < n; i++) CHECK(wcs[i].status == IBV_WC_SUCCESS, "%s", ibv_wc_status_str(wcs[i].status));
    return n;
}

struct flow {
    enum ibv_wr_opcode op;
    double begin, rate;
    long *free;              // requests that each queue pair may post
    unsigned long long sent; // requests
    long under_way;
    int next;                // queue pair
};

// Whether a program that paces itself may send another message; a portion begins when all of it is due.
static bool is_due(const struct flow *f, double now) {
    if (f->rate == 0) return true;
    double portions = (double)(unsigned long long)((now - f->begin) / PORTION);
    return (double)f->sent * (double)len < portions * PORTION * f->rate;
}

// Posts what may be posted, by turns.
static void post_all(struct flow *f, double now) {
    for (int idle = 0; idle < count && is_due(f, now); f->next = (f->next + 1) % count) {
        if (f->free[f->next] == 0) {
            idle++;
            continue;
        }
        idle = 0;
        post(f->next, f->op);
        f->free[f->next]--;
        f->sent++;
        f->under_way++;
    }
}

static double next_portion(const struct flow *f, double now) {
    if (f->rate == 0) return now + 20;
    return f->begin + PORTION * (double)((unsigned long long)((now - f->begin) / PORTION) + 1);
}

static void pour(const char *op, double seconds, double rate) {
    enum { BATCH = 64 };
    struct ibv_wc wcs[BATCH];
    struct flow f = {.op = opcode(op), .begin = now_seconds(), .rate = rate, .free = calloc((size_t)count, sizeof(long))};
    for (int i = 0; i < count; i++) f.free[i] = depth;
    double now = f.begin, from = f.begin + WARM_UP, end = from + seconds, first = 0, last = 0;
    unsigned long long done = 0, at_first = 0;
    while (now < end || f.under_way) {
        if (now < end) post_all(&f, now);
        int n = reap(wcs, BATCH);
        if (n == 0) {
            wait_for_event(f.under_way && now >= end ? now + 20 : next_portion(&f, now), -1);
        }
        now = now_seconds();
        for (int i = 0; i < n; i++) f.free[wcs[i].wr_id]++;
        f.under_way -= n;
        done += (unsigned long long)n;
        if (first == 0 && now >= from) {
            first = now;
            at_first = done;
        }
        if (first != 0 && last == 0 && now >= end) {
            last = now;
            printf("poured %llu %.6f ", (done - at_first) * len, last - first);
        }
    }
    printf("%llu\n", f.sent * len);
    free(f.free);
}

static void sink(void) {
    enum { BATCH = 64 };
    struct ibv_wc wcs[BATCH];
    unsigned long long received = 0;
    for (int i = 0; i < count; i++)
        for (int k = 0; k < depth; k++) post_receive(i);
    puts("sinking");
    for (bool is_over = false;;) {
        int n = reap(wcs, BATCH);
        for (int i = 0; i < n; i++) post_receive((int)wcs[i].wr_id);
        received += (unsigned long long)n;
        if (n == 0 && is_over) break;
        if (n == 0) is_over = wait_for_event(now_seconds() + 1, 0);
    }
    printf("sunk %llu\n", received * len);
}

int main(int argc, char **argv) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    setvbuf(stdin, NULL, _IONBF, 0);
    CHECK(argc == 5, "flow TYPE COUNT DEPTH LEN");
    count = atoi(argv[2]);
    depth = atoi(argv[3]);
    len = strtoull(argv[4], NULL, 10);
    open_sides(strcmp(argv[1], "ud") == 0 ? IBV_QPT_UD : strcmp(argv[1], "uc") == 0 ? IBV_QPT_UC : IBV_QPT_RC);
    print_local();
    char *line = NULL, op[16];
    size_t room = 0;
    double seconds, rate;
    while (getline(&line, &room, stdin) > 0) {
        line[strcspn(line, "\n")] = 0;
        if (strncmp(line, "connect ", 8) == 0) {
            connect_to(line + 8);
        } else if (sscanf(line, "pour %15s %lf %lf", op, &seconds, &rate) == 3) {
            pour(op, seconds, rate);
        } else if (strcmp(line, "sink") == 0) {
            sink();
        } else if (strcmp(line, "quit") == 0) {
            return 0;
        } else {
            CHECK(strcmp(line, "stop") == 0, "unknown command: %s", line);
        }
    }
    return 0;
}
