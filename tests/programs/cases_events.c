// Completion channels, asynchronous events, threads and many contexts.
#include "cases.h"
#include "verbs.h"
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <string.h>

static bool readable(int fd, int milliseconds) {
    struct pollfd p = {.fd = fd, .events = POLLIN};
    return poll(&p, 1, milliseconds) == 1;
}

static void expect_cq_event(struct side *s) {
    CHECK(readable(s->channel->fd, 10000), "no completion event");
    struct ibv_cq *cq;
    void *argument;
    CHECK(ibv_get_cq_event(s->channel, &cq, &argument) == 0);
    CHECK(cq == s->cq && argument == s);
    ibv_ack_cq_events(cq, 1);
}

static void expect_async_event(struct side *s, enum ibv_event_type type, const void *element) {
    CHECK(readable(s->context->async_fd, 10000), "no event, \"%s\" awaited", ibv_event_type_str(type));
    struct ibv_async_event event;
    CHECK(ibv_get_async_event(s->context, &event) == 0);
    CHECK(event.event_type == type, "\"%s\" instead of \"%s\"", ibv_event_type_str(event.event_type), ibv_event_type_str(type));
    CHECK((const void *)event.element.qp == element);
    ibv_ack_async_event(&event);
}

static void send_empty(struct side *a, struct side *b, unsigned flags) {
    post_recv(b, 1, NULL, 0);
    struct request r;
    request(&r, a, IBV_WR_SEND, 0, 0)->wr.send_flags |= flags;
    post_send(a, &r.wr);
    expect_wc(a->cq, IBV_WC_SUCCESS);
}

int case_completion_channel(void) {
    struct side a, b;
    struct options o = default_options(IBV_QPT_RC);
    side_open(&a, &o);
    o.events = true;
    side_open(&b, &o);
    connect_sides(&a, &b);
    for (int round = 0; round < 500; round++) {
        CHECK(ibv_req_notify_cq(b.cq, 0) == 0);
        send_empty(&a, &b, 0);
        expect_cq_event(&b);
        send_empty(&a, &b, 0); // not armed again: no second event
        expect_wc(b.cq, IBV_WC_SUCCESS);
        expect_wc(b.cq, IBV_WC_SUCCESS);
        CHECK(!readable(b.channel->fd, 0), "an event that was not asked for");
    }
    // A completion between the last poll and the arming does not make an event (kernel devices may, rxe does not).
    close_pair(&a, &b);
    return 0;
}

int case_solicited_only(void) {
    struct side a, b;
    struct options o = default_options(IBV_QPT_RC);
    side_open(&a, &o);
    o.events = true;
    side_open(&b, &o);
    connect_sides(&a, &b);
    for (int round = 0; round < 100; round++) {
        CHECK(ibv_req_notify_cq(b.cq, 1) == 0);
        send_empty(&a, &b, 0);
        expect_wc(b.cq, IBV_WC_SUCCESS);
        CHECK(!readable(b.channel->fd, 1), "an unsolicited message must not wake");
        send_empty(&a, &b, IBV_SEND_SOLICITED);
        expect_cq_event(&b);
        expect_wc(b.cq, IBV_WC_SUCCESS);
    }
    close_pair(&a, &b);
    return 0;
}

int case_srq_limit(void) {
    struct side a, b;
    struct options o = default_options(IBV_QPT_RC);
    side_open(&a, &o);
    o.srq = true;
    side_open(&b, &o);
    connect_sides(&a, &b);
    for (int i = 0; i < 9; i++) post_recv(&b, 1, NULL, 0);
    struct ibv_srq_attr attr = {.srq_limit = 8};
    CHECK(ibv_modify_srq(b.srq, &attr, IBV_SRQ_LIMIT) == 0);
    CHECK(ibv_query_srq(b.srq, &attr) == 0 && attr.srq_limit == 8);
    CHECK(!readable(b.context->async_fd, 0));
    struct request r;
    for (int i = 0; i < 3; i++) {
        post_send(&a, &request(&r, &a, IBV_WR_SEND, 0, 0)->wr);
        expect_wc(a.cq, IBV_WC_SUCCESS);
    }
    expect_async_event(&b, IBV_EVENT_SRQ_LIMIT_REACHED, b.srq);
    CHECK(!readable(b.context->async_fd, 0), "the limit is good for one event");
    close_pair(&a, &b);
    return 0;
}

int case_cq_overflow(void) {
    struct side a, b;
    struct options o = default_options(IBV_QPT_RC);
    side_open(&b, &o);
    o.cqe = 4;
    side_open(&a, &o);
    connect_sides(&a, &b);
    for (int i = 0; i < 40; i++) {
        struct request r;
        post_send(&a, &request(&r, &a, IBV_WR_RDMA_WRITE, 0, 8)->wr);
    }
    expect_async_event(&a, IBV_EVENT_CQ_ERR, a.cq);
    while (readable(a.context->async_fd, 0)) { // events of the QPs on it may follow
        struct ibv_async_event event;
        CHECK(ibv_get_async_event(a.context, &event) == 0);
        ibv_ack_async_event(&event);
    }
    close_pair(&a, &b);
    return 0;
}

int case_last_wqe_reached(void) {
    struct side a, b;
    struct options o = default_options(IBV_QPT_RC);
    o.srq = true;
    open_pair(&a, &b, &o);
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
    CHECK(ibv_modify_qp(b.qp, &attr, IBV_QP_STATE) == 0);
    expect_async_event(&b, IBV_EVENT_QP_LAST_WQE_REACHED, b.qp);
    close_pair(&a, &b);
    return 0;
}

int case_access_error_event(void) {
    struct side a, b;
    struct options o = default_options(IBV_QPT_RC);
    open_pair(&a, &b, &o);
    struct request r;
    request(&r, &a, IBV_WR_RDMA_WRITE, 0, 8)->wr.wr.rdma.rkey ^= 1;
    post_send(&a, &r.wr);
    expect_wc(a.cq, IBV_WC_REM_ACCESS_ERR);
    expect_async_event(&b, IBV_EVENT_QP_ACCESS_ERR, b.qp);
    close_pair(&a, &b);
    return 0;
}

enum { THREADS = 6, MESSAGES = 2000 };

static void ping(struct side *a, struct side *b, uint64_t seed) {
    for (uint64_t i = 0; i < MESSAGES; i++) {
        struct ibv_sge sge = {(uintptr_t)b->buffer, 256, b->mr->lkey};
        post_recv(b, i, &sge, 1);
        fill(a->buffer, 200, seed + i);
        struct request r;
        post_send(a, &request(&r, a, IBV_WR_SEND, 0, 200)->wr);
        expect_wc(a->cq, IBV_WC_SUCCESS);
        CHECK(expect_wc(b->cq, IBV_WC_SUCCESS).wr_id == i);
        CHECK(matches(b->buffer, 200, seed + i));
    }
}

static void *own_pair(void *argument) {
    struct side a, b;
    struct options o = default_options(IBV_QPT_RC);
    open_pair(&a, &b, &o);
    ping(&a, &b, (uintptr_t)argument);
    close_pair(&a, &b);
    return NULL;
}

static void run_threads(void *(*run)(void *), void *arguments[THREADS]) {
    pthread_t threads[THREADS];
    for (int i = 0; i < THREADS; i++) CHECK(pthread_create(&threads[i], NULL, run, arguments[i]) == 0);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
}

int case_threads(void) {
    void *arguments[THREADS];
    for (uintptr_t i = 0; i < THREADS; i++) arguments[i] = (void *)(i * MESSAGES);
    run_threads(own_pair, arguments);
    return 0;
}

struct shared_pair {
    struct side a, b;
    uint64_t seed;
};

static void *ping_pair(void *argument) {
    struct shared_pair *p = argument;
    ping(&p->a, &p->b, p->seed);
    return NULL;
}

// All QPs on one context and one PD; each thread has its own QPs and CQs, created while others work.
static void *create_and_ping(void *argument) {
    struct shared_pair *p = argument;
    struct side *sides[2] = {&p->a, &p->b};
    for (int i = 0; i < 2; i++) {
        sides[i]->cq = ibv_create_cq(sides[i]->context, 128, NULL, NULL, 0);
        CHECK(sides[i]->cq);
        sides[i]->mr = ibv_reg_mr(sides[i]->pd, sides[i]->buffer, 4096, IBV_ACCESS_LOCAL_WRITE);
        CHECK(sides[i]->mr);
        side_open_qp(sides[i]);
    }
    connect_sides(&p->a, &p->b);
    ping_pair(p);
    for (int i = 0; i < 2; i++) {
        CHECK(ibv_destroy_qp(sides[i]->qp) == 0);
        CHECK(ibv_dereg_mr(sides[i]->mr) == 0);
        CHECK(ibv_destroy_cq(sides[i]->cq) == 0);
    }
    return NULL;
}

int case_shared_context_threads(void) {
    struct side base;
    struct options o = default_options(IBV_QPT_RC);
    side_open(&base, &o);
    static struct shared_pair pairs[THREADS];
    void *arguments[THREADS];
    for (int i = 0; i < THREADS; i++) {
        struct side side = base;
        side.cq = NULL;
        side.qp = NULL;
        pairs[i] = (struct shared_pair){.a = side, .b = side, .seed = (uint64_t)i * MESSAGES};
        pairs[i].a.buffer = base.buffer + i * 8192;
        pairs[i].b.buffer = base.buffer + i * 8192 + 4096;
        arguments[i] = &pairs[i];
    }
    run_threads(create_and_ping, arguments);
    side_close(&base);
    return 0;
}

int case_many_contexts(void) {
    enum { COUNT = 24 };
    static struct side sides[COUNT];
    struct options o = default_options(IBV_QPT_RC);
    for (int i = 0; i < COUNT; i++) side_open(&sides[i], &o);
    for (int i = 0; i < COUNT; i += 2) connect_sides(&sides[i], &sides[i + 1]);
    for (int i = 0; i < COUNT; i += 2) {
        struct request r;
        fill(sides[i].buffer, 5000, (uint64_t)i);
        post_send(&sides[i], &request(&r, &sides[i], IBV_WR_RDMA_WRITE, 0, 5000)->wr);
    }
    for (int i = 0; i < COUNT; i += 2) {
        expect_wc(sides[i].cq, IBV_WC_SUCCESS);
        CHECK(matches(sides[i + 1].buffer, 5000, (uint64_t)i));
    }
    for (int i = 0; i < COUNT; i++) side_close(&sides[i]);
    return 0;
}
