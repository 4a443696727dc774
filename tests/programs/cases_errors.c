// Each way to fail, and the status that each side must see.
#include "cases.h"
#include "verbs.h"
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

static void open_rc(struct side *a, struct side *b) {
    struct options o = default_options(IBV_QPT_RC);
    open_pair(a, b, &o);
}

static enum ibv_qp_state state_of(struct side *s) {
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr init;
    CHECK(ibv_query_qp(s->qp, &attr, IBV_QP_STATE, &init) == 0);
    CHECK(s->qp->state == attr.qp_state);
    return attr.qp_state;
}

// After a failed request: the ones behind it are flushed, and so is what is posted later.
static void expect_flushed(struct side *s) {
    struct request r;
    request(&r, s, IBV_WR_RDMA_WRITE, 0, 8)->wr.wr_id = 99;
    CHECK(state_of(s) == IBV_QPS_ERR);
    post_send(s, &r.wr);
    CHECK(expect_wc(s->cq, IBV_WC_WR_FLUSH_ERR).wr_id == 99);
    post_recv(s, 98, NULL, 0);
    CHECK(expect_wc(s->cq, IBV_WC_WR_FLUSH_ERR).wr_id == 98);
    expect_nothing(s->cq);
}

// Posts `r` and one more behind it; `r` must fail with `status`, the other must be flushed.
static void fails_with(struct side *s, struct request *r, enum ibv_wc_status status) {
    struct request behind;
    request(&behind, s, IBV_WR_RDMA_WRITE, 0, 8)->wr.wr_id = 2;
    r->wr.next = &behind.wr;
    post_send(s, &r->wr);
    CHECK(expect_wc(s->cq, status).wr_id == 1);
    CHECK(expect_wc(s->cq, IBV_WC_WR_FLUSH_ERR).wr_id == 2);
    expect_flushed(s);
}

int case_receiver_not_ready(void) {
    struct side a, b;
    struct options o = default_options(IBV_QPT_RC);
    o.rnr_retries = 2;
    open_pair(&a, &b, &o);
    struct request r;
    fails_with(&a, request(&r, &a, IBV_WR_SEND, 0, 8), IBV_WC_RNR_RETRY_EXC_ERR);
    CHECK(state_of(&b) == IBV_QPS_RTS);
    close_pair(&a, &b);
    return 0;
}

static void *receive_late(void *argument) {
    usleep(50000); // the message must wait for this
    post_recv(argument, 5, NULL, 0);
    return NULL;
}

int case_receiver_ready_late(void) {
    struct side a, b;
    open_rc(&a, &b); // seven RNR retries: for ever
    pthread_t thread;
    pthread_create(&thread, NULL, receive_late, &b);
    struct request r;
    double start = now_seconds();
    post_send(&a, &request(&r, &a, IBV_WR_SEND, 0, 0)->wr);
    expect_wc(a.cq, IBV_WC_SUCCESS);
    CHECK(now_seconds() - start > 0.04 && now_seconds() - start < 5);
    CHECK(expect_wc(b.cq, IBV_WC_SUCCESS).wr_id == 5);
    pthread_join(thread, NULL);
    close_pair(&a, &b);
    return 0;
}

static void refused(int access, enum ibv_wr_opcode op, int64_t addr_shift, uint32_t key_change, size_t len) {
    struct side a, b;
    struct options o = default_options(IBV_QPT_RC);
    side_open(&a, &o);
    o.access = access;
    side_open(&b, &o);
    connect_sides(&a, &b);
    fill(a.buffer, 4096, 1);
    fill(b.buffer, b.options.len, 2);
    struct request r;
    request(&r, &a, op, 0, len);
    if (op == IBV_WR_ATOMIC_FETCH_AND_ADD) {
        r.wr.wr.atomic.remote_addr = a.remote_addr;
        r.wr.wr.atomic.compare_add = 1;
        r.wr.wr.atomic.rkey = a.remote_rkey ^ key_change;
    } else {
        r.wr.wr.rdma.remote_addr += (uint64_t)addr_shift;
        r.wr.wr.rdma.rkey ^= key_change;
    }
    fails_with(&a, &r, IBV_WC_REM_ACCESS_ERR);
    CHECK(state_of(&b) == IBV_QPS_ERR, "the responder of an access error goes to the error state");
    CHECK(matches(b.buffer, b.options.len, 2), "a refused request must not change anything");
    CHECK(op == IBV_WR_RDMA_WRITE || matches(a.buffer, 4096, 1));
    close_pair(&a, &b);
}

int case_remote_access(void) {
    const int all = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
    const int64_t end = (int64_t)default_options(IBV_QPT_RC).len;
    refused(all, IBV_WR_RDMA_WRITE, 0, 1, 8);
    refused(all, IBV_WR_RDMA_WRITE, 0, 0x100, 8);
    refused(all, IBV_WR_RDMA_READ, 0, 0xff00, 8);
    refused(all, IBV_WR_RDMA_WRITE, -1, 0, 8);
    refused(all, IBV_WR_RDMA_WRITE, end - 7, 0, 8);
    refused(all, IBV_WR_RDMA_READ, end, 0, 1);
    refused(all, IBV_WR_RDMA_WRITE, INT64_MIN, 0, 4096);
    refused(all & ~IBV_ACCESS_REMOTE_WRITE, IBV_WR_RDMA_WRITE, 0, 0, 8);
    refused(all & ~IBV_ACCESS_REMOTE_READ, IBV_WR_RDMA_READ, 0, 0, 8);
    refused(all & ~IBV_ACCESS_REMOTE_ATOMIC, IBV_WR_ATOMIC_FETCH_AND_ADD, 0, 0, 8);
    return 0;
}

int case_local_protection(void) {
    for (int i = 0; i < 4; i++) {
        struct side a, b;
        open_rc(&a, &b);
        struct request r;
        request(&r, &a, i == 3 ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE, 0, 64);
        if (i == 0) r.sge.lkey ^= 0x1;
        if (i == 1) r.sge.addr -= 1;
        if (i == 2) r.sge.addr += a.options.len - 63;
        if (i == 3) r.sge.lkey ^= 0x100;
        fails_with(&a, &r, IBV_WC_LOC_PROT_ERR);
        CHECK(all_zero(b.buffer, 4096));
        close_pair(&a, &b);
    }
    return 0;
}

int case_short_receive(void) {
    struct side a, b;
    open_rc(&a, &b);
    struct ibv_sge sge = {(uintptr_t)b.buffer, 100, b.mr->lkey};
    post_recv(&b, 6, &sge, 1);
    post_recv(&b, 7, &sge, 1);
    struct request r;
    fails_with(&a, request(&r, &a, IBV_WR_SEND, 0, 101), IBV_WC_REM_INV_REQ_ERR);
    CHECK(expect_wc(b.cq, IBV_WC_LOC_LEN_ERR).wr_id == 6);
    CHECK(expect_wc(b.cq, IBV_WC_WR_FLUSH_ERR).wr_id == 7);
    CHECK(all_zero(b.buffer + 100, 4096));
    close_pair(&a, &b);
    return 0;
}

int case_bad_receive_key(void) {
    struct side a, b;
    open_rc(&a, &b);
    struct ibv_sge sge = {(uintptr_t)b.buffer, 100, b.mr->lkey ^ 1};
    post_recv(&b, 6, &sge, 1);
    struct request r;
    fails_with(&a, request(&r, &a, IBV_WR_SEND, 0, 10), IBV_WC_REM_OP_ERR);
    CHECK(expect_wc(b.cq, IBV_WC_LOC_PROT_ERR).wr_id == 6);
    close_pair(&a, &b);
    return 0;
}

int case_nobody_there(void) {
    struct side a, b;
    struct options o = default_options(IBV_QPT_RC);
    o.timeout = 14; // 67 ms
    o.retries = 3;
    side_open(&a, &o);
    side_open(&b, &o);
    struct address nobody = side_address(&b);
    nobody.qpn = 0xfffff0;
    side_connect(&a, &nobody);
    double start = now_seconds();
    struct request r;
    fails_with(&a, request(&r, &a, IBV_WR_SEND, 0, 10), IBV_WC_RETRY_EXC_ERR);
    double took = now_seconds() - start;
    CHECK(took > 0.05 && took < 3, "%.3f s", took);
    close_pair(&a, &b);
    return 0;
}

int case_destroyed_peer(void) {
    struct side a, b;
    struct options o = default_options(IBV_QPT_RC);
    o.timeout = 12;
    o.retries = 3;
    open_pair(&a, &b, &o);
    struct request r;
    post_send(&a, &request(&r, &a, IBV_WR_RDMA_WRITE, 0, 10)->wr);
    expect_wc(a.cq, IBV_WC_SUCCESS);
    CHECK(ibv_destroy_qp(b.qp) == 0);
    b.qp = NULL;
    fails_with(&a, request(&r, &a, IBV_WR_RDMA_WRITE, 0, 10), IBV_WC_RETRY_EXC_ERR);
    close_pair(&a, &b);
    return 0;
}

int case_flush_on_error_state(void) {
    struct side a, b;
    open_rc(&a, &b);
    for (uint64_t i = 0; i < 20; i++) post_recv(&b, i, NULL, 0);
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
    CHECK(ibv_modify_qp(b.qp, &attr, IBV_QP_STATE) == 0);
    for (uint64_t i = 0; i < 20; i++) CHECK(expect_wc(b.cq, IBV_WC_WR_FLUSH_ERR).wr_id == i);
    expect_flushed(&b);
    close_pair(&a, &b);
    return 0;
}

int case_unreliable_drops(void) {
    struct side a, b;
    struct options o = default_options(IBV_QPT_UC);
    open_pair(&a, &b, &o);
    struct request r;
    fill(a.buffer, 64, 3);
    request(&r, &a, IBV_WR_RDMA_WRITE, 0, 64)->wr.wr.rdma.rkey ^= 1;
    post_send(&a, &r.wr);
    expect_wc(a.cq, IBV_WC_SUCCESS); // an unreliable sender never learns
    post_send(&a, &request(&r, &a, IBV_WR_SEND, 0, 64)->wr);
    expect_wc(a.cq, IBV_WC_SUCCESS); // nor that nobody was ready
    CHECK(state_of(&a) == IBV_QPS_RTS);
    close_pair(&a, &b);

    o = default_options(IBV_QPT_UD);
    open_pair(&a, &b, &o);
    post_send(&a, &request(&r, &a, IBV_WR_SEND, 0, 64)->wr); // nothing posted: dropped
    expect_wc(a.cq, IBV_WC_SUCCESS);
    struct ibv_sge sge = {(uintptr_t)b.buffer, 200, b.mr->lkey};
    post_recv(&b, 8, &sge, 1);
    request(&r, &a, IBV_WR_SEND, 0, 64);
    r.wr.wr.ud.ah = a.ah;
    r.wr.wr.ud.remote_qpn = a.remote_qpn;
    r.wr.wr.ud.remote_qkey = 0x22222222; // not the receiver's
    struct ibv_send_wr *bad;
    CHECK(ibv_post_send(a.qp, &r.wr, &bad) == 0);
    expect_wc(a.cq, IBV_WC_SUCCESS);
    post_send(&a, &request(&r, &a, IBV_WR_SEND, 0, 32)->wr);
    expect_wc(a.cq, IBV_WC_SUCCESS);
    struct ibv_wc wc = expect_wc(b.cq, IBV_WC_SUCCESS);
    CHECK(wc.byte_len == 72, "only the last message may arrive: %u bytes", wc.byte_len);
    close_pair(&a, &b);
    return 0;
}

int case_reuse_after_error(void) {
    struct side a, b;
    open_rc(&a, &b);
    for (int round = 0; round < 20; round++) {
        struct request r;
        request(&r, &a, IBV_WR_RDMA_WRITE, 0, 8)->wr.wr.rdma.rkey ^= 1;
        fails_with(&a, &r, IBV_WC_REM_ACCESS_ERR);
        side_open_qp(&a);
        side_open_qp(&b);
        connect_sides(&a, &b);
        fill(a.buffer, 64, (uint64_t)round);
        post_send(&a, &request(&r, &a, IBV_WR_RDMA_WRITE, 0, 64)->wr);
        expect_wc(a.cq, IBV_WC_SUCCESS);
        CHECK(matches(b.buffer, 64, (uint64_t)round));
    }
    close_pair(&a, &b);
    return 0;
}

int case_wrong_state(void) {
    struct side a;
    struct options o = default_options(IBV_QPT_RC);
    side_open(&a, &o);
    struct request r;
    request(&r, &a, IBV_WR_RDMA_WRITE, 0, 8);
    CHECK(try_post_send(&a, &r.wr) == EINVAL, "a send in INIT");
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTS};
    CHECK(ibv_modify_qp(a.qp, &attr, IBV_QP_STATE) == EINVAL, "INIT to RTS");
    attr.qp_state = IBV_QPS_RTR;
    CHECK(ibv_modify_qp(a.qp, &attr, IBV_QP_STATE) == EINVAL, "RTR without its attributes");
    CHECK(state_of(&a) == IBV_QPS_INIT);
    CHECK(ibv_dealloc_pd(a.pd) == EBUSY);
    CHECK(ibv_destroy_cq(a.cq) == EBUSY);
    side_close(&a);
    return 0;
}
