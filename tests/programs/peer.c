// peer [rc|uc|ud] [timeout] [retries]: one end of a connection, led line by line through its standard input.
//
// It prints "local GID QPN RKEY ADDR"; then it obeys:
//   connect GID QPN RKEY ADDR    to that end
//   fill SEED LEN                the pattern of SEED into its buffer
//   check SEED LEN               "match" or "differ"
//   recv                         posts a receive over its whole buffer
//   post OP LEN                  OP: send, write or read; returns at once
//   wait                         prints the next completion: "wc STATUS MILLISECONDS-SINCE-THE-LAST-POST"
//   flood OP LEN                 posts and reaps until one fails: "wc STATUS MILLISECONDS-SINCE-THE-LAST-SUCCESS"
//   trickle OP LEN COUNT         posts and reaps COUNT, one at a time: "done"
//   sample write SECONDS         8-byte WRITEs, one at a time: "sampled COUNT MEDIAN P99 WORST", in microseconds
//   sample stream SECONDS        the same with many WRITEs under way; the times are those between completions
//   sample setup SECONDS         the same of making and destroying a queue pair and a region, in four commands
//   events                       prints the asynchronous events that are there, by name, then "end"; an error as "errno N"
//   alloc                        asks the device for something: "done" or "errno N"
//   reopen                       closes the device, whatever has become of it, and begins anew: "local GID QPN RKEY ADDR"
//   linger MS                    lets the device outlive the program: "token HEX" or "errno N"
//   quit                         destroys everything and exits 0
#include "../../include/rdmesh_linger.h"
#include "verbs.h"
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

static struct side side;
static double last_post;

static enum ibv_wr_opcode opcode(const char *name) {
    if (strcmp(name, "write") == 0) return IBV_WR_RDMA_WRITE;
    if (strcmp(name, "read") == 0) return IBV_WR_RDMA_READ;
    CHECK(strcmp(name, "send") == 0, "%s", name);
    return IBV_WR_SEND;
}

static void print_local(void) {
    struct address at = side_address(&side);
    printf("local ");
    for (int i = 0; i < 16; i++) printf("%02x", at.gid.raw[i]);
    printf(" %u %u %llu\n", at.qpn, at.rkey, (unsigned long long)at.addr);
}

static void connect_to(const char *arguments) {
    char gid[33];
    struct address remote;
    unsigned long long addr;
    CHECK(sscanf(arguments, "%32s %u %u %llu", gid, &remote.qpn, &remote.rkey, &addr) == 4);
    for (int i = 0; i < 16; i++) {
        unsigned byte;
        CHECK(sscanf(gid + 2 * i, "%2x", &byte) == 1);
        remote.gid.raw[i] = (uint8_t)byte;
    }
    remote.addr = addr;
    side_connect(&side, &remote);
    puts("connected");
}

static void post(const char *op, size_t len) {
    struct request r;
    last_post = now_seconds();
    post_send(&side, &request(&r, &side, opcode(op), 0, len)->wr);
}

static void print_wc(const struct ibv_wc *wc, double since) {
    printf("wc %s %.0f\n", ibv_wc_status_str(wc->status), (now_seconds() - since) * 1e3);
}

static void flood(const char *op, size_t len) {
    enum { WINDOW = 16 };
    double last_success = now_seconds();
    for (int i = 0; i < WINDOW; i++) post(op, len);
    puts("flooding");
    for (;;) {
        struct ibv_wc wc = poll_one(side.cq, 60);
        if (wc.status != IBV_WC_SUCCESS) {
            print_wc(&wc, last_success);
            for (int i = 1; i < WINDOW; i++) expect_wc(side.cq, IBV_WC_WR_FLUSH_ERR);
            return;
        }
        last_success = now_seconds();
        post(op, len);
    }
}

static void complete_write(void) {
    // Without the sched_yield() of poll_one(), and for longer: an attack may last.
    struct ibv_wc wc;
    double end = now_seconds() + 60;
    while (ibv_poll_cq(side.cq, 1, &wc) == 0) CHECK(now_seconds() < end, "no completion");
    CHECK(wc.status == IBV_WC_SUCCESS, "%s", ibv_wc_status_str(wc.status));
}

static void write_once(void) {
    post("write", 8);
    complete_write();
}

static void write_next(void) {
    complete_write();
    post("write", 8);
}

static void set_up_once(void) {
    struct ibv_qp_init_attr init = {.send_cq = side.cq, .recv_cq = side.cq, .qp_type = IBV_QPT_RC,
                                    .cap = {.max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 1, .max_recv_sge = 1}};
    struct ibv_qp *qp = ibv_create_qp(side.pd, &init);
    CHECK(qp);
    struct ibv_mr *mr = ibv_reg_mr(side.pd, side.buffer, 4096, IBV_ACCESS_LOCAL_WRITE);
    CHECK(mr);
    CHECK(ibv_dereg_mr(mr) == 0);
    CHECK(ibv_destroy_qp(qp) == 0);
}

static int compare(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static void sample(const char *what, double seconds) {
    enum { MOST = 16 << 20 };
    enum { WINDOW = 48 };
    static float samples[MOST];
    int ahead = strcmp(what, "stream") == 0 ? WINDOW : 0;
    void (*once)(void) = ahead ? write_next : strcmp(what, "setup") == 0 ? set_up_once : write_once;
    size_t count = 0;
    for (int i = 0; i < ahead; i++) post("write", 8);
    for (double begin = now_seconds(), last = begin, now; last < begin + seconds && count < MOST; last = now) {
        once();
        now = now_seconds();
        samples[count++] = (float)((now - last) * 1e6);
    }
    for (int i = 0; i < ahead; i++) complete_write();
    qsort(samples, count, sizeof *samples, compare);
    printf("sampled %zu %.1f %.1f %.1f\n", count, samples[count / 2], samples[count * 99 / 100], samples[count - 1]);
}

static void print_events(void) {
    struct pollfd p = {.fd = side.context->async_fd, .events = POLLIN};
    while (poll(&p, 1, 0) == 1) {
        struct ibv_async_event event;
        if (ibv_get_async_event(side.context, &event)) {
            printf("errno %d\n", errno);
            break;
        }
        puts(ibv_event_type_str(event.event_type));
        ibv_ack_async_event(&event);
    }
    puts("end");
}

static void try_alloc(void) {
    struct ibv_pd *pd = ibv_alloc_pd(side.context);
    if (!pd) {
        printf("errno %d\n", errno);
        return;
    }
    CHECK(ibv_dealloc_pd(pd) == 0);
    puts("done");
}

static void reopen(void) {
    struct options options = side.options;
    // A device that has gone refuses all of these but the last.
    ibv_destroy_qp(side.qp);
    ibv_destroy_cq(side.cq);
    ibv_dereg_mr(side.mr);
    ibv_dealloc_pd(side.pd);
    CHECK(ibv_close_device(side.context) == 0);
    memset(&side, 0, sizeof side);
    side_open(&side, &options);
    print_local();
}

static void linger(uint64_t milliseconds) {
    struct rdmesh_token token;
    if (rdmesh_linger(side.context->cmd_fd, milliseconds, &token)) {
        printf("errno %d\n", errno);
        return;
    }
    printf("token ");
    for (size_t i = 0; i < sizeof token.bytes; i++) printf("%02x", token.bytes[i]);
    puts("");
}

static bool obey(const char *line) {
    char op[16];
    unsigned long long a = 0, b = 0;
    double seconds;
    if (strncmp(line, "connect ", 8) == 0) {
        connect_to(line + 8);
    } else if (sscanf(line, "fill %llu %llu", &a, &b) == 2) {
        fill(side.buffer, b, a);
        puts("filled");
    } else if (sscanf(line, "check %llu %llu", &a, &b) == 2) {
        puts(matches(side.buffer, b, a) ? "match" : "differ");
    } else if (strcmp(line, "recv") == 0) {
        struct ibv_sge sge = {(uintptr_t)side.buffer, (uint32_t)side.options.len, side.mr->lkey};
        post_recv(&side, 1, &sge, 1);
        puts("posted");
    } else if (sscanf(line, "post %15s %llu", op, &a) == 2) {
        post(op, a);
        puts("posted");
    } else if (strcmp(line, "wait") == 0) {
        struct ibv_wc wc = poll_one(side.cq, 60);
        print_wc(&wc, last_post);
    } else if (sscanf(line, "flood %15s %llu", op, &a) == 2) {
        flood(op, a);
    } else if (sscanf(line, "trickle %15s %llu %llu", op, &a, &b) == 3) {
        for (; b; b--) {
            post(op, a);
            expect_wc(side.cq, IBV_WC_SUCCESS);
        }
        puts("done");
    } else if (sscanf(line, "sample %15s %lf", op, &seconds) == 2) {
        sample(op, seconds);
    } else if (sscanf(line, "linger %llu", &a) == 1) {
        linger(a);
    } else if (strcmp(line, "events") == 0) {
        print_events();
    } else if (strcmp(line, "alloc") == 0) {
        try_alloc();
    } else if (strcmp(line, "reopen") == 0) {
        reopen();
    } else if (strcmp(line, "quit") == 0) {
        side_close(&side);
        return false;
    } else {
        CHECK(false, "unknown command: %s", line);
    }
    return true;
}

int main(int argc, char **argv) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    const char *type = argc > 1 ? argv[1] : "rc";
    struct options o = default_options(strcmp(type, "ud") == 0 ? IBV_QPT_UD : strcmp(type, "uc") == 0 ? IBV_QPT_UC : IBV_QPT_RC);
    if (argc > 2) o.timeout = (uint8_t)atoi(argv[2]);
    if (argc > 3) o.retries = (uint8_t)atoi(argv[3]);
    side_open(&side, &o);
    print_local();
    char line[256];
    while (fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\n")] = 0;
        if (!obey(line)) return 0;
    }
    return 0;
}
