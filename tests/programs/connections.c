// connections server PORT: serves connections until standard input ends; then prints how many there were.
// connections client PORT ADDRESS COUNT FLIGHT: makes COUNT connections, up to FLIGHT at a time, on one event channel.
// connections sync PORT ADDRESS COUNT: the same one after the other, with librdmacm's synchronous calls.
//
// On every connection the client sends its number, the server answers with the next one, and the client disconnects. Clients
// print "rate CONNECTIONS-PER-SECOND" and "established MICROSECONDS", from the creation of an identifier to its connection.
#include "verbs.h"
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SLOTS = 1024, CQE = 4 * SLOTS, TIMEOUT_MS = 10000 };

// A connection's place: what it sends and receives lies at its index in the buffers.
struct slot {
    struct rdma_cm_id *id;
    uint32_t generation; // tells its completions from its predecessor's
    bool is_used, is_over;
    uint64_t number;
    double begin;
};

static struct slot slots[SLOTS];
static uint64_t outgoing[SLOTS], incoming[SLOTS];
static struct rdma_event_channel *channel;
static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_comp_channel *completions;
static struct ibv_cq *cq;
static struct ibv_mr *out_mr, *in_mr;
static struct sockaddr_in place;
static bool is_server;
static uint64_t wanted, begun, done;
static int in_flight;
static double waited; // of all connections, until they were established

static void set_up(struct ibv_context *verbs) {
    if (context) {
        CHECK(context == verbs, "one device");
        return;
    }
    context = verbs;
    CHECK((pd = ibv_alloc_pd(context)));
    CHECK((completions = ibv_create_comp_channel(context)));
    CHECK(fcntl(completions->fd, F_SETFL, O_NONBLOCK) == 0);
    CHECK((cq = ibv_create_cq(context, CQE, NULL, completions, 0)));
    CHECK(ibv_req_notify_cq(cq, 0) == 0);
    CHECK((out_mr = ibv_reg_mr(pd, outgoing, sizeof outgoing, IBV_ACCESS_LOCAL_WRITE)));
    CHECK((in_mr = ibv_reg_mr(pd, incoming, sizeof incoming, IBV_ACCESS_LOCAL_WRITE)));
}

static void tear_down(void) {
    if (context) {
        CHECK(ibv_dereg_mr(out_mr) == 0 && ibv_dereg_mr(in_mr) == 0);
        CHECK(ibv_destroy_cq(cq) == 0 && ibv_destroy_comp_channel(completions) == 0);
        CHECK(ibv_dealloc_pd(pd) == 0);
    }
    rdma_destroy_event_channel(channel);
}

static struct slot *take_slot(struct rdma_cm_id *id) {
    for (struct slot *s = slots; s < slots + SLOTS; s++) {
        if (s->is_used) continue;
        *s = (struct slot){.id = id, .generation = s->generation + 1, .is_used = true};
        id->context = s;
        in_flight++;
        return s;
    }
    fail(__FILE__, __LINE__, "a free slot", "%d connections at a time", SLOTS);
}

static uint64_t wr_id(const struct slot *s) {
    return (uint64_t)s->generation << 32 | (uint64_t)(s - slots);
}

static bool make_qp(struct slot *s) {
    set_up(s->id->verbs);
    struct ibv_qp_init_attr init = {
        .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .sq_sig_all = 1,
        .cap = {.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1},
    };
    if (rdma_create_qp(s->id, pd, &init)) return false;
    struct ibv_sge sge = {(uintptr_t)&incoming[s - slots], sizeof *incoming, in_mr->lkey};
    struct ibv_recv_wr wr = {.wr_id = wr_id(s), .sg_list = &sge, .num_sge = 1}, *bad;
    CHECK(ibv_post_recv(s->id->qp, &wr, &bad) == 0);
    return true;
}

static void send_number(struct slot *s, uint64_t number) {
    outgoing[s - slots] = number;
    struct ibv_sge sge = {(uintptr_t)&outgoing[s - slots], sizeof number, out_mr->lkey};
    struct ibv_send_wr wr = {.wr_id = wr_id(s), .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND}, *bad;
    CHECK(ibv_post_send(s->id->qp, &wr, &bad) == 0);
}

static void begin_one(void) {
    struct rdma_cm_id *id;
    double now = now_seconds();
    CHECK(rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0, "connection %llu", (unsigned long long)begun);
    struct slot *s = take_slot(id);
    s->number = begun++;
    s->begin = now;
    CHECK(rdma_resolve_addr(id, NULL, (struct sockaddr *)&place, 2000) == 0);
}

static void end_one(struct slot *s) {
    if (s->id->qp) rdma_destroy_qp(s->id);
    CHECK(rdma_destroy_id(s->id) == 0);
    s->is_used = false;
    in_flight--;
    done++;
    if (!is_server && begun < wanted) begin_one();
}

// Takes its part in the connection that it is about; the event is acknowledged already.
static void on_event(enum rdma_cm_event_type type, struct rdma_cm_id *id, int status) {
    struct rdma_conn_param parameters = {.responder_resources = 1, .initiator_depth = 1, .retry_count = 7, .rnr_retry_count = 7};
    struct slot *s = id->context;
    switch (type) {
    case RDMA_CM_EVENT_ADDR_RESOLVED:
        CHECK(rdma_resolve_route(id, 2000) == 0);
        return;
    case RDMA_CM_EVENT_ROUTE_RESOLVED:
        CHECK(make_qp(s));
        CHECK(rdma_connect(id, &parameters) == 0);
        return;
    case RDMA_CM_EVENT_CONNECT_REQUEST:
        s = take_slot(id);
        // The client may have been killed meanwhile.
        if (!make_qp(s) || rdma_accept(id, &parameters)) end_one(s);
        return;
    case RDMA_CM_EVENT_ESTABLISHED:
        if (!is_server) {
            waited += now_seconds() - s->begin;
            send_number(s, s->number);
        }
        return;
    case RDMA_CM_EVENT_DISCONNECTED:
        if (is_server) rdma_disconnect(id);
        end_one(s);
        return;
    case RDMA_CM_EVENT_TIMEWAIT_EXIT:
        return;
    default:
        CHECK(is_server, "%s, status %d", rdma_event_str(type), status);
        end_one(s);
    }
}

static bool take_event(void) {
    struct rdma_cm_event *event;
    if (rdma_get_cm_event(channel, &event)) {
        CHECK(errno == EAGAIN);
        return false;
    }
    enum rdma_cm_event_type type = event->event;
    struct rdma_cm_id *id = event->id;
    int status = event->status;
    CHECK(rdma_ack_cm_event(event) == 0);
    on_event(type, id, status);
    return true;
}

static void on_completion(const struct ibv_wc *wc) {
    struct slot *s = &slots[(uint32_t)wc->wr_id];
    if (s->generation != wc->wr_id >> 32 || !s->is_used || s->is_over) return;
    CHECK(wc->status == IBV_WC_SUCCESS || is_server, "%s", ibv_wc_status_str(wc->status));
    if (wc->status != IBV_WC_SUCCESS || wc->opcode != IBV_WC_RECV) return;
    if (is_server) {
        send_number(s, incoming[s - slots] + 1);
        return;
    }
    CHECK(incoming[s - slots] == s->number + 1);
    s->is_over = true;
    CHECK(rdma_disconnect(s->id) == 0);
}

static void take_completions(void) {
    struct ibv_cq *which;
    void *unused;
    struct ibv_wc wc[16];
    if (ibv_get_cq_event(completions, &which, &unused) == 0) {
        ibv_ack_cq_events(which, 1);
        CHECK(ibv_req_notify_cq(cq, 0) == 0);
    }
    for (int n; (n = ibv_poll_cq(cq, 16, wc)) > 0;)
        for (int i = 0; i < n; i++) on_completion(&wc[i]);
}

// Does what there is to do; waits for it. False where standard input has ended.
static bool turn(void) {
    struct pollfd fds[3] = {{.fd = channel->fd, .events = POLLIN}, {.fd = context ? completions->fd : -1, .events = POLLIN},
                            {.fd = is_server ? STDIN_FILENO : -1, .events = POLLIN}};
    int n = poll(fds, 3, is_server ? -1 : TIMEOUT_MS);
    CHECK(n > 0, "nothing happens; %d connections wait", in_flight);
    if (fds[0].revents)
        for (int i = 0; i < 64 && take_event(); i++) {}
    if (fds[1].revents) take_completions();
    return !fds[2].revents;
}

static void serve(void) {
    struct rdma_cm_id *listener;
    is_server = true;
    CHECK(rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP) == 0);
    CHECK(rdma_bind_addr(listener, (struct sockaddr *)&place) == 0);
    CHECK(rdma_listen(listener, SLOTS) == 0);
    puts("listening");
    while (turn()) {}
    for (struct slot *s = slots; s < slots + SLOTS; s++)
        if (s->is_used) end_one(s);
    CHECK(rdma_destroy_id(listener) == 0);
    printf("served %llu\n", (unsigned long long)done);
}

static void report(double begin, double until_established) {
    printf("rate %.0f\nestablished %.1f\n", (double)wanted / (now_seconds() - begin), until_established * 1e6 / (double)wanted);
}

static void connect_many(int flight) {
    double begin = now_seconds();
    for (int i = 0; i < flight && begun < wanted; i++) begin_one();
    while (done < wanted) turn();
    report(begin, waited);
}

static void connect_synchronously(uint64_t number) {
    struct rdma_addrinfo hints = {.ai_port_space = RDMA_PS_TCP}, *found;
    char address[INET_ADDRSTRLEN], port[8];
    inet_ntop(AF_INET, &place.sin_addr, address, sizeof address);
    snprintf(port, sizeof port, "%u", ntohs(place.sin_port));
    double created = now_seconds();
    CHECK(rdma_getaddrinfo(address, port, &hints, &found) == 0);
    struct ibv_qp_init_attr init = {.sq_sig_all = 1, .cap = {.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1}};
    struct rdma_cm_id *id;
    CHECK(rdma_create_ep(&id, found, NULL, &init) == 0);
    rdma_freeaddrinfo(found);
    uint64_t buffer[2] = {number, 0};
    struct ibv_mr *mr = rdma_reg_msgs(id, buffer, sizeof buffer);
    struct ibv_wc wc;
    CHECK(mr);
    CHECK(rdma_post_recv(id, NULL, &buffer[1], sizeof *buffer, mr) == 0);
    CHECK(rdma_connect(id, NULL) == 0);
    waited += now_seconds() - created;
    CHECK(rdma_post_send(id, NULL, buffer, sizeof *buffer, mr, 0) == 0);
    CHECK(rdma_get_send_comp(id, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
    CHECK(rdma_get_recv_comp(id, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
    CHECK(buffer[1] == number + 1);
    CHECK(rdma_disconnect(id) == 0);
    CHECK(rdma_dereg_mr(mr) == 0);
    rdma_destroy_ep(id);
}

int main(int argc, char **argv) {
    CHECK(argc >= 3, "usage: connections server PORT | client PORT ADDRESS COUNT FLIGHT | sync PORT ADDRESS COUNT");
    setvbuf(stdout, NULL, _IOLBF, 0);
    place = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(argv[2]))};
    if (argc > 4) {
        CHECK(inet_pton(AF_INET, argv[3], &place.sin_addr) == 1);
        wanted = strtoull(argv[4], NULL, 10);
    }
    if (strcmp(argv[1], "sync") == 0) {
        CHECK(wanted);
        double begin = now_seconds();
        for (uint64_t i = 0; i < wanted; i++) connect_synchronously(i);
        report(begin, waited);
        return 0;
    }
    CHECK((channel = rdma_create_event_channel()));
    CHECK(fcntl(channel->fd, F_SETFL, O_NONBLOCK) == 0);
    if (argc == 6) connect_many(atoi(argv[5]));
    else serve();
    tear_down();
    return 0;
}
