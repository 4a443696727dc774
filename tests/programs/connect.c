// connect ROLE ADDRESS [options]: connections made and ended with rdma_cm, as a line for each thing that happened. ROLE is
// `server`, which listens at ADDRESS and says so, or `client`, which calls it.
//   -p PORT    (18700)
//   -n COUNT   of connections, all at the same time (1)
//   -d WHO     ends them: the server, the client, or nobody of the two, who then wait for it to happen (client)
//   -w         stays when they have ended, until it is killed, so that what comes late is answered
//   -r         the server refuses them
//   -x STATUS  the client is refused, for the reason with this number
#include "verbs.h"
#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// Bytes of private data that programs have in a request, a reply and a refusal over TCP's port space.
enum { IN_REQUEST = 56, IN_REPLY = 196, IN_REFUSAL = 148 };
// What a text's bytes follow from.
enum { REQUEST = 1, REPLY, REFUSAL, QUESTION, ANSWER };
// What each side can do: READs that it answers and asks for at a time, and retries after receiver-not-ready. They differ, so
// that each must be where it belongs. A client like iSER's answers more than it asks for.
static const struct rdma_conn_param CLIENT = {.responder_resources = 5, .initiator_depth = 1, .flow_control = 1,
                                              .retry_count = 6, .rnr_retry_count = 7};
static const struct rdma_conn_param SERVER = {.responder_resources = 1, .initiator_depth = 3, .flow_control = 0,
                                              .rnr_retry_count = 6};
enum { TIMEOUT_MS = 60000, MESSAGE = 4096, RESOLVE_MS = 5000, CONSUMER_DEFINED = 28 };

struct connection {
    struct rdma_cm_id *id;
    struct ibv_pd *pd;
    struct ibv_cq *cq;
    struct ibv_mr *mr;
    char *buffer; // MESSAGE bytes to receive, MESSAGE bytes to send
};

static struct rdma_event_channel *channel;
static struct connection *connections;
static bool is_server, refuses, stays;
static int count = 1, refused_status = -1;
static const char *ends = "client", *port = "18700";

// The next event, which is the caller's to acknowledge.
static struct rdma_cm_event *next_event(void) {
    struct pollfd waited = {.fd = channel->fd, .events = POLLIN};
    CHECK(poll(&waited, 1, TIMEOUT_MS) == 1, "no event");
    struct rdma_cm_event *event;
    CHECK(rdma_get_cm_event(channel, &event) == 0, "%s", strerror(errno));
    return event;
}

static void expect_event(const struct rdma_cm_event *event, enum rdma_cm_event_type type, int status) {
    CHECK(event->event == type && event->status == status, "%s with status %d, want %s with %d",
          rdma_event_str(event->event), event->status, rdma_event_str(type), status);
}

static void expect_private(const struct rdma_cm_event *event, size_t len, uint64_t seed) {
    CHECK(event->param.conn.private_data_len == len, "%d bytes of private data, want %zu",
          event->param.conn.private_data_len, len);
    CHECK(matches(event->param.conn.private_data, len, seed));
}

// The peer's parameters, as seen from here: it asks for what is answered here.
static void expect_parameters(const struct rdma_cm_event *event, const struct rdma_conn_param *peer) {
    const struct rdma_conn_param *told = &event->param.conn;
    CHECK(told->responder_resources == peer->initiator_depth && told->initiator_depth == peer->responder_resources,
          "%u to answer, %u to ask for", told->responder_resources, told->initiator_depth);
    CHECK(told->flow_control == peer->flow_control && told->retry_count == peer->retry_count && told->srq == 0 &&
              told->rnr_retry_count == peer->rnr_retry_count && told->qp_num != 0,
          "flow control %u, %u retries, %u after RNR, SRQ %u, QP %u", told->flow_control, told->retry_count,
          told->rnr_retry_count, told->srq, told->qp_num);
}

// An event that says nothing of the peer.
static void expect_no_parameters(const struct rdma_cm_event *event) {
    CHECK(event->param.conn.private_data_len == 0 && event->param.conn.qp_num == 0, "%d bytes of private data",
          event->param.conn.private_data_len);
}

static void expect_success(int result, const char *what) {
    CHECK(result == 0, "%s: %s", what, strerror(errno));
}

static void post_receive(struct connection *c) {
    struct ibv_sge sge = {.addr = (uintptr_t)c->buffer, .length = MESSAGE, .lkey = c->mr->lkey};
    struct ibv_recv_wr wr = {.sg_list = &sge, .num_sge = 1}, *bad;
    CHECK(ibv_post_recv(c->id->qp, &wr, &bad) == 0);
}

static void open_queues(struct connection *c) {
    c->pd = ibv_alloc_pd(c->id->verbs);
    c->cq = ibv_create_cq(c->id->verbs, 4, NULL, NULL, 0);
    c->buffer = calloc(2, MESSAGE);
    c->mr = ibv_reg_mr(c->pd, c->buffer, 2 * MESSAGE, IBV_ACCESS_LOCAL_WRITE);
    CHECK(c->pd && c->cq && c->mr);
    struct ibv_qp_init_attr attr = {.send_cq = c->cq, .recv_cq = c->cq, .qp_type = IBV_QPT_RC,
                                    .cap = {.max_send_wr = 2, .max_recv_wr = 2, .max_send_sge = 1, .max_recv_sge = 1}};
    expect_success(rdma_create_qp(c->id, c->pd, &attr), "rdma_create_qp");
    post_receive(c);
}

static void close_queues(struct connection *c) {
    if (c->pd) {
        rdma_destroy_qp(c->id);
        ibv_dereg_mr(c->mr);
        ibv_destroy_cq(c->cq);
        ibv_dealloc_pd(c->pd);
        free(c->buffer);
    }
    expect_success(rdma_destroy_id(c->id), "rdma_destroy_id");
}

static struct rdma_conn_param param_with(const char *private, size_t len) {
    struct rdma_conn_param param = is_server ? SERVER : CLIENT;
    param.private_data = private;
    param.private_data_len = (uint8_t)len;
    return param;
}

static void ask(struct connection *c) {
    char private[IN_REQUEST];
    fill(private, sizeof private, REQUEST);
    open_queues(c);
    struct rdma_conn_param param = param_with(private, sizeof private);
    expect_success(rdma_connect(c->id, &param), "rdma_connect");
}

static void answer(struct connection *c) {
    char private[IN_REPLY];
    if (refuses) {
        fill(private, IN_REFUSAL, REFUSAL);
        expect_success(rdma_reject(c->id, private, IN_REFUSAL), "rdma_reject");
        return;
    }
    fill(private, sizeof private, REPLY);
    open_queues(c);
    struct rdma_conn_param param = param_with(private, sizeof private);
    expect_success(rdma_accept(c->id, &param), "rdma_accept");
}

static void listen_at(struct rdma_addrinfo *at) {
    struct rdma_cm_id *listener;
    expect_success(rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP), "rdma_create_id");
    expect_success(rdma_bind_addr(listener, at->ai_src_addr), "rdma_bind_addr");
    expect_success(rdma_listen(listener, count), "rdma_listen");
    puts("listening");
    for (int asked = 0, made = 0; asked < count || (!refuses && made < count);) {
        struct rdma_cm_event *event = next_event();
        if (event->event == RDMA_CM_EVENT_CONNECT_REQUEST) {
            expect_private(event, IN_REQUEST, REQUEST);
            expect_parameters(event, &CLIENT);
            struct connection *c = &connections[asked++];
            c->id = event->id;
            answer(c);
        } else {
            expect_event(event, RDMA_CM_EVENT_ESTABLISHED, 0);
            expect_no_parameters(event);
            made++;
        }
        rdma_ack_cm_event(event);
    }
    expect_success(rdma_destroy_id(listener), "rdma_destroy_id");
}

static void check_answer(const struct rdma_cm_event *event) {
    if (refused_status < 0) {
        expect_event(event, RDMA_CM_EVENT_ESTABLISHED, 0);
        expect_private(event, IN_REPLY, REPLY);
        expect_parameters(event, &SERVER);
    } else {
        expect_event(event, RDMA_CM_EVENT_REJECTED, refused_status);
        if (refused_status == CONSUMER_DEFINED) expect_private(event, IN_REFUSAL, REFUSAL);
    }
}

static void call(struct rdma_addrinfo *at) {
    for (int i = 0; i < count; i++) {
        struct connection *c = &connections[i];
        expect_success(rdma_create_id(channel, &c->id, c, RDMA_PS_TCP), "rdma_create_id");
        expect_success(rdma_resolve_addr(c->id, NULL, at->ai_dst_addr, RESOLVE_MS), "rdma_resolve_addr");
    }
    for (int answered = 0; answered < count;) {
        struct rdma_cm_event *event = next_event();
        struct connection *c = event->id->context;
        if (event->event == RDMA_CM_EVENT_ADDR_RESOLVED) {
            expect_success(rdma_resolve_route(c->id, RESOLVE_MS), "rdma_resolve_route");
        } else if (event->event == RDMA_CM_EVENT_ROUTE_RESOLVED) {
            ask(c);
        } else {
            check_answer(event);
            answered++;
        }
        rdma_ack_cm_event(event);
    }
}

static void send_message(struct connection *c, uint64_t seed) {
    char *text = c->buffer + MESSAGE;
    fill(text, MESSAGE, seed);
    struct ibv_sge sge = {.addr = (uintptr_t)text, .length = MESSAGE, .lkey = c->mr->lkey};
    struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND}, *bad;
    CHECK(ibv_post_send(c->id->qp, &wr, &bad) == 0);
}

static void receive_message(struct connection *c, uint64_t seed) {
    struct ibv_wc wc = poll_one(c->cq, TIMEOUT_MS / 1000);
    CHECK(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RECV, "%s", ibv_wc_status_str(wc.status));
    CHECK(matches(c->buffer, MESSAGE, seed));
}

// Whoever ends the connections begins, so that all has arrived when that side has its answers.
static void exchange(void) {
    bool begins = strcmp(ends, "server") == 0 ? is_server : !is_server;
    for (int i = 0; begins && i < count; i++) send_message(&connections[i], QUESTION);
    for (int i = 0; i < count; i++) {
        receive_message(&connections[i], begins ? ANSWER : QUESTION);
        if (!begins) send_message(&connections[i], ANSWER);
    }
}

static void disconnect(void) {
    bool is_mine = strcmp(ends, is_server ? "server" : "client") == 0;
    for (int i = 0; is_mine && i < count; i++) expect_success(rdma_disconnect(connections[i].id), "rdma_disconnect");
    for (int ended = 0; ended < count;) {
        struct rdma_cm_event *event = next_event();
        if (event->event != RDMA_CM_EVENT_TIMEWAIT_EXIT) {
            expect_event(event, RDMA_CM_EVENT_DISCONNECTED, 0);
            expect_no_parameters(event);
            ended++;
            if (!is_mine) expect_success(rdma_disconnect(event->id), "rdma_disconnect");
        }
        rdma_ack_cm_event(event);
    }
}

static void parse(int argc, char **argv) {
    for (int option; (option = getopt(argc, argv, "p:n:d:wrx:")) != -1;) switch (option) {
        case 'p': port = optarg; break;
        case 'n': count = atoi(optarg); break;
        case 'd': ends = optarg; break;
        case 'w': stays = true; break;
        case 'r': refuses = true; break;
        case 'x': refused_status = atoi(optarg); break;
        default: exit(2);
        }
    CHECK(argc - optind == 2, "usage: connect [options] server|client ADDRESS");
    is_server = strcmp(argv[optind], "server") == 0;
}

int main(int argc, char **argv) {
    parse(argc, argv);
    setvbuf(stdout, NULL, _IOLBF, 0);
    struct rdma_addrinfo hints = {.ai_flags = is_server ? RAI_PASSIVE : 0, .ai_port_space = RDMA_PS_TCP}, *at;
    CHECK(rdma_getaddrinfo(argv[optind + 1], port, &hints, &at) == 0);
    connections = calloc((size_t)count, sizeof *connections);
    channel = rdma_create_event_channel();
    CHECK(channel, "%s", strerror(errno));
    is_server ? listen_at(at) : call(at);
    if (refuses || refused_status >= 0) {
        puts("refused");
    } else {
        exchange();
        puts("connected");
        disconnect();
        puts("disconnected");
    }
    for (int i = 0; i < count; i++) close_queues(&connections[i]);
    if (stays) pause();
    rdma_destroy_event_channel(channel);
    rdma_freeaddrinfo(at);
    free(connections);
    return 0;
}
