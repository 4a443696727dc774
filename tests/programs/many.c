// many COUNT [listen PORT | connect PORT ADDRESS]: COUNT RC queue pairs open at once, in one context.
//
// Alone it connects them in pairs; else each to the queue pair of the same number in the other program, of which it hears
// over TCP. Every queue pair sends a message and receives one. What each step took is printed in microseconds per queue
// pair, then "open"; the queue pairs stay open until standard input ends.
#include "verbs.h"
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { DEPTH = 4, QPS_PER_CQ = 512, MESSAGE = 64, TRIPS = 2000 };

struct name {
    union ibv_gid gid;
    uint32_t qpn;
};

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq **cqs;
static struct ibv_qp **qps;
static struct ibv_mr *mr;
static unsigned char *buffer; // for each queue pair what it sends, then what it receives
static union ibv_gid gid;
static int count;

static void report(const char *what, double begin, int number) {
    printf("%s %.2f\n", what, (now_seconds() - begin) * 1e6 / number);
    fflush(stdout);
}

static struct ibv_cq *cq_of(int i) {
    return cqs[i / QPS_PER_CQ];
}

static void create(int i) {
    struct ibv_qp_init_attr init = {
        .send_cq = cq_of(i), .recv_cq = cq_of(i), .qp_type = IBV_QPT_RC, .sq_sig_all = 1,
        .cap = {.max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 1, .max_recv_sge = 1},
    };
    qps[i] = ibv_create_qp(pd, &init);
    CHECK(qps[i], "queue pair %d", i);
}

static void connect_qp(int i, const struct name *peer) {
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE};
    CHECK(ibv_modify_qp(qps[i], &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == 0);
    attr = (struct ibv_qp_attr){
        .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer->qpn, .rq_psn = 7, .min_rnr_timer = 1,
        .max_dest_rd_atomic = 1,
        .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = peer->gid, .sgid_index = 1, .hop_limit = 64}},
    };
    CHECK(ibv_modify_qp(qps[i], &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                        IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) == 0);
    attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .sq_psn = 7, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7,
                                .max_rd_atomic = 1};
    CHECK(ibv_modify_qp(qps[i], &attr, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
                        IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC) == 0);
}

static void post_receive(int i) {
    struct ibv_sge sge = {(uintptr_t)buffer + (size_t)(2 * i + 1) * MESSAGE, MESSAGE, mr->lkey};
    struct ibv_recv_wr wr = {.wr_id = (uint64_t)i, .sg_list = &sge, .num_sge = 1}, *bad;
    CHECK(ibv_post_recv(qps[i], &wr, &bad) == 0);
}

static void post(int i) {
    struct ibv_sge sge = {(uintptr_t)buffer + (size_t)(2 * i) * MESSAGE, MESSAGE, mr->lkey};
    struct ibv_send_wr wr = {.wr_id = (uint64_t)i, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND}, *bad;
    CHECK(ibv_post_send(qps[i], &wr, &bad) == 0);
}

// Takes `wanted` completions, of sends and receives.
static void reap(int first, int wanted) {
    for (; wanted; wanted--) expect_wc(cq_of(first), IBV_WC_SUCCESS);
}

// Every queue pair sends the pattern of its own number, and receives that of its peer's.
static void exchange(bool in_pairs) {
    for (int i = 0; i < count; i++) fill(buffer + (size_t)(2 * i) * MESSAGE, MESSAGE, (uint64_t)i);
    for (int i = 0; i < count; i++) post_receive(i);
    for (int i = 0; i < count; i++) post(i);
    for (int i = 0; i < count; i++) reap(i, 2);
    for (int i = 0; i < count; i++)
        CHECK(matches(buffer + (size_t)(2 * i + 1) * MESSAGE, MESSAGE, (uint64_t)(in_pairs ? i ^ 1 : i)), "queue pair %d", i);
}

// Half a round trip between the first two.
static void measure_latency(const char *what) {
    double begin = now_seconds();
    for (int trip = 0; trip < TRIPS; trip++) {
        for (int from = 0; from < 2; from++) {
            post_receive(1 - from);
            post(from);
            reap(0, 2);
        }
    }
    report(what, begin, 2 * TRIPS);
}

static void transfer(int fd, void *at, size_t len, bool is_read) {
    for (char *p = at; len;) {
        ssize_t n = is_read ? read(fd, p, len) : write(fd, p, len);
        CHECK(n > 0);
        p += n;
        len -= (size_t)n;
    }
}

static int meet(int port, const char *address) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int fd = socket(AF_INET, SOCK_STREAM, 0), yes = 1;
    if (address) {
        CHECK(inet_pton(AF_INET, address, &at.sin_addr) == 1);
        double end = now_seconds() + 20;
        while (connect(fd, (struct sockaddr *)&at, sizeof at)) {
            CHECK(errno == ECONNREFUSED && now_seconds() < end);
            usleep(10000);
        }
        return fd;
    }
    CHECK(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) == 0);
    CHECK(bind(fd, (struct sockaddr *)&at, sizeof at) == 0 && listen(fd, 1) == 0);
    int peer = accept(fd, NULL, NULL);
    CHECK(peer >= 0);
    close(fd);
    return peer;
}

static struct name *names_of_peers(int socket) {
    struct name *own = calloc((size_t)count, sizeof *own), *peers = calloc((size_t)count, sizeof *peers);
    for (int i = 0; i < count; i++) own[i] = (struct name){gid, qps[i]->qp_num};
    if (socket < 0) {
        for (int i = 0; i < count; i++) peers[i] = own[i ^ 1];
    } else {
        for (int i = 0; i < count; i++) {
            transfer(socket, &own[i], sizeof own[i], false);
            transfer(socket, &peers[i], sizeof peers[i], true);
        }
    }
    free(own);
    return peers;
}

static void set_up(void) {
    context = open_device();
    CHECK((pd = ibv_alloc_pd(context)));
    CHECK(ibv_query_gid(context, 1, 1, &gid) == 0);
    size_t len = (size_t)count * 2 * MESSAGE;
    CHECK((buffer = aligned_alloc(4096, (len + 4095) / 4096 * 4096)));
    CHECK((mr = ibv_reg_mr(pd, buffer, len, IBV_ACCESS_LOCAL_WRITE)));
    int queues = (count + QPS_PER_CQ - 1) / QPS_PER_CQ;
    cqs = calloc((size_t)queues, sizeof *cqs);
    qps = calloc((size_t)count, sizeof *qps);
    for (int i = 0; i < queues; i++) CHECK((cqs[i] = ibv_create_cq(context, 4 * QPS_PER_CQ, NULL, NULL, 0)));
}

static void tear_down(void) {
    double begin = now_seconds();
    for (int i = 0; i < count; i++) CHECK(ibv_destroy_qp(qps[i]) == 0);
    report("destroy", begin, count);
    for (int i = 0; i * QPS_PER_CQ < count; i++) CHECK(ibv_destroy_cq(cqs[i]) == 0);
    CHECK(ibv_dereg_mr(mr) == 0);
    CHECK(ibv_dealloc_pd(pd) == 0);
    CHECK(ibv_close_device(context) == 0);
}

int main(int argc, char **argv) {
    CHECK(argc == 2 || argc == 4 || argc == 5, "usage: many COUNT [listen PORT | connect PORT ADDRESS]");
    count = atoi(argv[1]);
    CHECK(count >= 2 && count % 2 == 0);
    set_up();
    double begin = now_seconds();
    for (int i = 0; i < count; i++) create(i);
    report("create", begin, count);

    int socket = argc > 2 ? meet(atoi(argv[3]), argc > 4 ? argv[4] : NULL) : -1;
    struct name *peers = names_of_peers(socket);
    begin = now_seconds();
    if (socket < 0) {
        for (int i = 0; i < 2; i++) connect_qp(i, &peers[i]);
        measure_latency("latency-first");
        begin = now_seconds();
    }
    for (int i = socket < 0 ? 2 : 0; i < count; i++) connect_qp(i, &peers[i]);
    if (count > 2) report("connect", begin, socket < 0 ? count - 2 : count);
    // A message must not come before the other end can answer.
    if (socket >= 0) names_of_peers(socket);
    begin = now_seconds();
    exchange(socket < 0);
    report("exchange", begin, count);
    if (socket < 0) measure_latency("latency-all");
    puts("open");
    fflush(stdout);
    while (getchar() != EOF) {}
    tear_down();
    free(peers);
    return 0;
}
