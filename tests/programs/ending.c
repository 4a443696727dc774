// ending ROLE ADDRESS [options]: messages whose sender ends the connection as soon as it has posted them. ROLE is `server`,
// which listens at ADDRESS, says so, and counts what has arrived when it hears of the end, or `client`, which calls it.
//   -p PORT   (18800)
//   -n ROUNDS one connection after the other (200)
//   -e HOW    the client ends it: `disconnect` (rdma_disconnect), `error` (the queue pair is moved to ERR), `destroy` (it is
//             destroyed), `exit` (the program ends)
#include "verbs.h"
#include <errno.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { TIMEOUT_MS = 60000, RESOLVE_MS = 5000, MESSAGES = 4, MESSAGE = 2000 };

static struct rdma_event_channel *channel;
static struct rdma_addrinfo *at;
static const char *how = "disconnect", *port = "18800";
static int rounds = 200;

struct end {
    struct rdma_cm_id *id;
    struct ibv_pd *pd;
    struct ibv_cq *cq;
    struct ibv_mr *mr;
    char *buffer;
};

static struct rdma_cm_event *expect(enum rdma_cm_event_type type) {
    struct pollfd waited = {.fd = channel->fd, .events = POLLIN};
    struct rdma_cm_event *event;
    do {
        CHECK(poll(&waited, 1, TIMEOUT_MS) == 1, "no event, want %s", rdma_event_str(type));
        CHECK(rdma_get_cm_event(channel, &event) == 0, "%s", strerror(errno));
        if (event->event != RDMA_CM_EVENT_TIMEWAIT_EXIT) break;
        rdma_ack_cm_event(event);
    } while (true);
    CHECK(event->event == type && event->status == 0, "%s with status %d, want %s", rdma_event_str(event->event),
          event->status, rdma_event_str(type));
    return event;
}

static void await(enum rdma_cm_event_type type) { rdma_ack_cm_event(expect(type)); }

static void open_queues(struct end *e) {
    e->pd = ibv_alloc_pd(e->id->verbs);
    e->cq = ibv_create_cq(e->id->verbs, 2 * MESSAGES, NULL, NULL, 0);
    e->buffer = calloc(MESSAGES, MESSAGE);
    e->mr = ibv_reg_mr(e->pd, e->buffer, MESSAGES * MESSAGE, IBV_ACCESS_LOCAL_WRITE);
    CHECK(e->pd && e->cq && e->mr);
    struct ibv_qp_cap cap = {.max_send_wr = MESSAGES, .max_recv_wr = MESSAGES, .max_send_sge = 1, .max_recv_sge = 1};
    struct ibv_qp_init_attr attr = {.send_cq = e->cq, .recv_cq = e->cq, .qp_type = IBV_QPT_RC, .cap = cap};
    CHECK(rdma_create_qp(e->id, e->pd, &attr) == 0, "%s", strerror(errno));
}

static void close_all(struct end *e) {
    if (e->id->qp) rdma_destroy_qp(e->id);
    ibv_dereg_mr(e->mr);
    ibv_destroy_cq(e->cq);
    ibv_dealloc_pd(e->pd);
    free(e->buffer);
    CHECK(rdma_destroy_id(e->id) == 0);
}

static struct ibv_sge piece(struct end *e, int i) {
    return (struct ibv_sge){.addr = (uintptr_t)(e->buffer + i * MESSAGE), .length = MESSAGE, .lkey = e->mr->lkey};
}

static struct rdma_conn_param parameters(void) {
    return (struct rdma_conn_param){.responder_resources = 1, .initiator_depth = 1, .retry_count = 7, .rnr_retry_count = 7};
}

// Counts what has arrived by now: there is no second look.
static int arrived(struct end *e, int round) {
    struct ibv_wc wc[MESSAGES];
    int count = ibv_poll_cq(e->cq, MESSAGES, wc);
    for (int i = 0; i < count; i++) {
        CHECK(wc[i].status == IBV_WC_SUCCESS, "%s in round %d", ibv_wc_status_str(wc[i].status), round);
        CHECK(matches(e->buffer + i * MESSAGE, MESSAGE, (uint64_t)(round * MESSAGES + i)));
    }
    return count;
}

static int serve(struct rdma_cm_id *listener, int round) {
    struct rdma_cm_event *event = expect(RDMA_CM_EVENT_CONNECT_REQUEST);
    struct end e = {.id = event->id};
    rdma_ack_cm_event(event);
    CHECK(e.id != listener);
    open_queues(&e);
    for (int i = 0; i < MESSAGES; i++) {
        struct ibv_sge sge = piece(&e, i);
        struct ibv_recv_wr wr = {.sg_list = &sge, .num_sge = 1}, *bad;
        CHECK(ibv_post_recv(e.id->qp, &wr, &bad) == 0);
    }
    struct rdma_conn_param param = parameters();
    CHECK(rdma_accept(e.id, &param) == 0, "%s", strerror(errno));
    await(RDMA_CM_EVENT_ESTABLISHED);
    await(RDMA_CM_EVENT_DISCONNECTED);
    int count = arrived(&e, round);
    rdma_disconnect(e.id);
    close_all(&e);
    return count;
}

static void post_messages(struct end *e, int round) {
    struct ibv_sge sges[MESSAGES];
    struct ibv_send_wr wrs[MESSAGES] = {0}, *bad;
    for (int i = 0; i < MESSAGES; i++) {
        fill(e->buffer + i * MESSAGE, MESSAGE, (uint64_t)(round * MESSAGES + i));
        sges[i] = piece(e, i);
        wrs[i] = (struct ibv_send_wr){.sg_list = &sges[i], .num_sge = 1, .opcode = IBV_WR_SEND,
                                      .next = i + 1 < MESSAGES ? &wrs[i + 1] : NULL};
    }
    CHECK(ibv_post_send(e->id->qp, wrs, &bad) == 0);
}

static void call(int round) {
    struct end e = {0};
    CHECK(rdma_create_id(channel, &e.id, NULL, RDMA_PS_TCP) == 0, "%s", strerror(errno));
    CHECK(rdma_resolve_addr(e.id, NULL, at->ai_dst_addr, RESOLVE_MS) == 0, "%s", strerror(errno));
    await(RDMA_CM_EVENT_ADDR_RESOLVED);
    CHECK(rdma_resolve_route(e.id, RESOLVE_MS) == 0, "%s", strerror(errno));
    await(RDMA_CM_EVENT_ROUTE_RESOLVED);
    open_queues(&e);
    struct rdma_conn_param param = parameters();
    CHECK(rdma_connect(e.id, &param) == 0, "%s", strerror(errno));
    await(RDMA_CM_EVENT_ESTABLISHED);
    post_messages(&e, round);
    if (strcmp(how, "exit") == 0) _exit(0);
    if (strcmp(how, "error") == 0) {
        struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
        CHECK(ibv_modify_qp(e.id->qp, &attr, IBV_QP_STATE) == 0);
    }
    if (strcmp(how, "destroy") == 0) rdma_destroy_qp(e.id);
    CHECK(rdma_disconnect(e.id) == 0, "%s", strerror(errno));
    await(RDMA_CM_EVENT_DISCONNECTED);
    close_all(&e);
}

// A round in a program of its own.
static void call_and_exit(int round) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        channel = rdma_create_event_channel();
        CHECK(channel, "%s", strerror(errno));
        call(round);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0, "status %d in round %d", status, round);
}

static void listen_and_count(void) {
    struct rdma_cm_id *listener;
    CHECK(rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP) == 0, "%s", strerror(errno));
    CHECK(rdma_bind_addr(listener, at->ai_src_addr) == 0, "%s", strerror(errno));
    CHECK(rdma_listen(listener, 1) == 0, "%s", strerror(errno));
    puts("listening");
    int count = 0;
    for (int round = 0; round < rounds; round++) count += serve(listener, round);
    rdma_destroy_id(listener);
    printf("%d of %d arrived\n", count, rounds * MESSAGES);
    CHECK(count == rounds * MESSAGES, "%d of %d messages were lost", rounds * MESSAGES - count, rounds * MESSAGES);
}

int main(int argc, char **argv) {
    for (int option; (option = getopt(argc, argv, "p:n:e:")) != -1;) switch (option) {
        case 'p': port = optarg; break;
        case 'n': rounds = atoi(optarg); break;
        case 'e': how = optarg; break;
        default: exit(2);
        }
    CHECK(argc - optind == 2, "usage: ending [options] server|client ADDRESS");
    bool is_server = strcmp(argv[optind], "server") == 0, forks = !is_server && strcmp(how, "exit") == 0;
    setvbuf(stdout, NULL, _IOLBF, 0);
    struct rdma_addrinfo hints = {.ai_flags = is_server ? RAI_PASSIVE : 0, .ai_port_space = RDMA_PS_TCP};
    CHECK(rdma_getaddrinfo(argv[optind + 1], port, &hints, &at) == 0);
    if (!forks) {
        channel = rdma_create_event_channel();
        CHECK(channel, "%s", strerror(errno));
    }
    if (is_server) {
        listen_and_count();
    } else {
        for (int round = 0; round < rounds; round++) forks ? call_and_exit(round) : call(round);
    }
    if (channel) rdma_destroy_event_channel(channel);
    rdma_freeaddrinfo(at);
    return 0;
}
