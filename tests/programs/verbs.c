#include "verbs.h"
#include <errno.h>
#include <sched.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

static const int ALL_ACCESS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                              IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND;

void fail(const char *file, int line, const char *condition, const char *format, ...) {
    int saved = errno;
    fprintf(stderr, "%s:%d: not so: %s (errno: %s) ", file, line, condition, strerror(saved));
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    exit(1);
}

double now_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

struct options default_options(enum ibv_qp_type type) {
    return (struct options){.type = type, .depth = 64, .sges = 4, .inline_len = 64, .len = 1 << 20, .timeout = 14,
                            .retries = 7, .rnr_retries = 7, .gid_index = 1};
}

struct ibv_context *open_device(void) {
    int count = 0;
    struct ibv_device **list = ibv_get_device_list(&count);
    CHECK(list && count == 1, "%d devices", count);
    struct ibv_context *context = ibv_open_device(list[0]);
    CHECK(context);
    ibv_free_device_list(list);
    return context;
}

static int access_of(const struct options *o) {
    return o->access ? o->access : ALL_ACCESS;
}

static void to_init(struct side *s) {
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = 0x11111111,
                               .qp_access_flags = (unsigned)access_of(&s->options) & ~(unsigned)IBV_ACCESS_MW_BIND};
    int last = s->options.type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS;
    CHECK(ibv_modify_qp(s->qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | last) == 0);
}

void side_open_qp(struct side *s) {
    if (s->qp) CHECK(ibv_destroy_qp(s->qp) == 0);
    struct ibv_qp_init_attr init = {
        .send_cq = s->cq,
        .recv_cq = s->cq,
        .srq = s->srq,
        .cap = {.max_send_wr = s->options.depth, .max_recv_wr = s->options.depth, .max_send_sge = s->options.sges,
                .max_recv_sge = s->options.sges, .max_inline_data = s->options.inline_len},
        .qp_type = s->options.type,
        .sq_sig_all = s->options.all_signaled,
    };
    s->qp = ibv_create_qp(s->pd, &init);
    CHECK(s->qp);
    to_init(s);
}

void side_open(struct side *s, const struct options *o) {
    memset(s, 0, sizeof *s);
    s->options = *o;
    s->context = open_device();
    s->pd = ibv_alloc_pd(s->context);
    CHECK(s->pd);
    if (o->events) CHECK((s->channel = ibv_create_comp_channel(s->context)));
    s->cq = ibv_create_cq(s->context, (int)(o->cqe ? o->cqe : 2 * o->depth), s, s->channel, 0);
    CHECK(s->cq);
    if (o->srq) {
        struct ibv_srq_init_attr init = {.attr = {.max_wr = o->depth, .max_sge = o->sges}};
        CHECK((s->srq = ibv_create_srq(s->pd, &init)));
    }
    s->buffer = mmap(NULL, o->len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(s->buffer != MAP_FAILED);
    s->mr = ibv_reg_mr(s->pd, s->buffer, o->len, access_of(o));
    CHECK(s->mr);
    CHECK(ibv_query_gid(s->context, 1, s->options.gid_index, &s->gid) == 0);
    side_open_qp(s);
}

void side_close(struct side *s) {
    if (s->ah) CHECK(ibv_destroy_ah(s->ah) == 0);
    if (s->qp) CHECK(ibv_destroy_qp(s->qp) == 0);
    if (s->srq) CHECK(ibv_destroy_srq(s->srq) == 0);
    if (s->mr) CHECK(ibv_dereg_mr(s->mr) == 0);
    CHECK(ibv_destroy_cq(s->cq) == 0);
    if (s->channel) CHECK(ibv_destroy_comp_channel(s->channel) == 0);
    CHECK(ibv_dealloc_pd(s->pd) == 0);
    CHECK(ibv_close_device(s->context) == 0);
    munmap(s->buffer, s->options.len);
}

struct address side_address(const struct side *s) {
    return (struct address){.gid = s->gid, .qpn = s->qp->qp_num, .rkey = s->mr->rkey, .addr = (uintptr_t)s->buffer};
}

static struct ibv_ah_attr path_to(const struct side *s, const union ibv_gid *gid) {
    return (struct ibv_ah_attr){.is_global = 1, .port_num = 1,
                                .grh = {.dgid = *gid, .sgid_index = s->options.gid_index, .hop_limit = 64}};
}

static void to_rtr(struct side *s, const struct address *remote) {
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = remote->qpn,
                               .rq_psn = 7, .max_dest_rd_atomic = 16, .min_rnr_timer = 1,
                               .ah_attr = path_to(s, &remote->gid)};
    int mask = IBV_QP_STATE;
    if (s->options.type != IBV_QPT_UD) mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
    if (s->options.type == IBV_QPT_RC) mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
    CHECK(ibv_modify_qp(s->qp, &attr, mask) == 0);
}

static void to_rts(struct side *s) {
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTS, .sq_psn = 7, .timeout = s->options.timeout,
                               .retry_cnt = s->options.retries, .rnr_retry = s->options.rnr_retries,
                               .max_rd_atomic = 16};
    int mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
    if (s->options.type == IBV_QPT_RC)
        mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
    CHECK(ibv_modify_qp(s->qp, &attr, mask) == 0);
}

void side_connect(struct side *s, const struct address *remote) {
    s->remote_qpn = remote->qpn;
    s->remote_addr = remote->addr;
    s->remote_rkey = remote->rkey;
    if (s->options.type == IBV_QPT_UD) {
        if (s->ah) CHECK(ibv_destroy_ah(s->ah) == 0);
        struct ibv_ah_attr path = path_to(s, &remote->gid);
        CHECK((s->ah = ibv_create_ah(s->pd, &path)));
    }
    to_rtr(s, remote);
    to_rts(s);
}

void connect_sides(struct side *a, struct side *b) {
    struct address at_a = side_address(a), at_b = side_address(b);
    side_connect(a, &at_b);
    side_connect(b, &at_a);
}

void open_pair(struct side *a, struct side *b, const struct options *options) {
    side_open(a, options);
    side_open(b, options);
    connect_sides(a, b);
}

void close_pair(struct side *a, struct side *b) {
    side_close(a);
    side_close(b);
}

int try_post_send(struct side *s, struct ibv_send_wr *wr) {
    if (s->options.type == IBV_QPT_UD) {
        for (struct ibv_send_wr *w = wr; w; w = w->next) {
            w->wr.ud.ah = s->ah;
            w->wr.ud.remote_qpn = s->remote_qpn;
            w->wr.ud.remote_qkey = 0x11111111;
        }
    }
    struct ibv_send_wr *bad = NULL;
    return ibv_post_send(s->qp, wr, &bad);
}

void post_send(struct side *s, struct ibv_send_wr *wr) {
    int error = try_post_send(s, wr);
    CHECK(error == 0, "post_send: %s", strerror(error));
}

void post_recv(struct side *s, uint64_t wr_id, const struct ibv_sge *sges, int count) {
    struct ibv_recv_wr wr = {.wr_id = wr_id, .sg_list = (struct ibv_sge *)sges, .num_sge = count}, *bad = NULL;
    int error = s->srq ? ibv_post_srq_recv(s->srq, &wr, &bad) : ibv_post_recv(s->qp, &wr, &bad);
    CHECK(error == 0, "post_recv: %s", strerror(error));
}

struct ibv_wc poll_one(struct ibv_cq *cq, double seconds) {
    struct ibv_wc wc;
    double end = now_seconds() + seconds;
    for (unsigned i = 0;; i++) {
        int n = ibv_poll_cq(cq, 1, &wc);
        CHECK(n >= 0);
        if (n) return wc;
        if (i % 64 == 63) {
            sched_yield();
            CHECK(now_seconds() < end, "no completion in %.1f s", seconds);
        }
    }
}

struct ibv_wc expect_wc(struct ibv_cq *cq, enum ibv_wc_status status) {
    struct ibv_wc wc = poll_one(cq, 20);
    CHECK(wc.status == status, "wr_id %llu: got \"%s\", want \"%s\"", (unsigned long long)wc.wr_id,
          ibv_wc_status_str(wc.status), ibv_wc_status_str(status));
    return wc;
}

void expect_nothing(struct ibv_cq *cq) {
    struct ibv_wc wc;
    int n = ibv_poll_cq(cq, 1, &wc);
    CHECK(n == 0, "an unasked completion: %s", n > 0 ? ibv_wc_status_str(wc.status) : "poll failed");
}

struct request *request(struct request *r, struct side *s, enum ibv_wr_opcode opcode, size_t offset, size_t len) {
    r->sge = (struct ibv_sge){.addr = (uintptr_t)s->buffer + offset, .length = (uint32_t)len, .lkey = s->mr->lkey};
    r->wr = (struct ibv_send_wr){.wr_id = 1, .sg_list = &r->sge, .num_sge = 1, .opcode = opcode,
                                 .send_flags = IBV_SEND_SIGNALED};
    r->wr.wr.rdma.remote_addr = s->remote_addr + offset;
    r->wr.wr.rdma.rkey = s->remote_rkey;
    return r;
}

static uint64_t mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return x ^ (x >> 31);
}

static unsigned char byte_at(uint64_t seed, size_t i) {
    return (unsigned char)(mix(seed * 0x100000001b3 + i / 8) >> (8 * (i % 8)));
}

void fill(void *at, size_t len, uint64_t seed) {
    for (size_t i = 0; i < len; i++) ((unsigned char *)at)[i] = byte_at(seed, i);
}

bool matches(const void *at, size_t len, uint64_t seed) {
    for (size_t i = 0; i < len; i++)
        if (((const unsigned char *)at)[i] != byte_at(seed, i)) return false;
    return true;
}

bool all_zero(const void *at, size_t len) {
    for (size_t i = 0; i < len; i++)
        if (((const unsigned char *)at)[i]) return false;
    return true;
}
