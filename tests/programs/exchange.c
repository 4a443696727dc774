// exchange CASE [SERVER]: two processes, anywhere, check between them every byte that RDMA moves. The one without SERVER
// listens. Cases, the same on both sides: rc, uc, ud, soak, rnr, errors.
//   -g INDEX   of the GID to speak from (1)
//   -p PORT    of the TCP connection that keeps the two in step (18515)
//   -n ROUNDS  of soak (20)
//   -l LENGTH  of the longest message of rc, uc and ud
//   -s, -c     in soak, the server, or the client, only sends and writes (both sides must be told)
#include "verbs.h"
#include <endian.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { GUARD = 64, TIMEOUT_S = 40 };

static struct side side;
static struct address remote;
static int tcp;
static bool is_server;
static unsigned rounds = 20;
static size_t longest = SIZE_MAX;
static bool is_plain[2]; // the client, the server

static void tell(const void *data, size_t len) {
    CHECK(send(tcp, data, len, MSG_NOSIGNAL) == (ssize_t)len, "the other side is gone");
}

static void hear(void *data, size_t len) {
    CHECK(recv(tcp, data, len, MSG_WAITALL) == (ssize_t)len, "the other side is gone");
}

// Both sides are here, and at the same `place`.
static void meet(uint32_t place) {
    uint32_t theirs;
    tell(&place, sizeof place);
    hear(&theirs, sizeof theirs);
    CHECK(place == theirs, "place %u here, %u there", place, theirs);
}

static void join(void) {
    struct address own = side_address(&side);
    tell(&own, sizeof own);
    hear(&remote, sizeof remote);
    side_connect(&side, &remote);
    meet(0);
}

static void open_side(enum ibv_qp_type type, uint8_t gid_index) {
    struct options o = default_options(type);
    o.len = 4 << 20;
    o.gid_index = gid_index;
    side_open(&side, &o);
    join();
}

static struct ibv_wc completion(enum ibv_wc_status status) {
    struct ibv_wc wc = poll_one(side.cq, TIMEOUT_S);
    CHECK(wc.status == status, "wr_id %llu: got \"%s\", want \"%s\"", (unsigned long long)wc.wr_id,
          ibv_wc_status_str(wc.status), ibv_wc_status_str(status));
    return wc;
}

static bool is_write(enum ibv_wr_opcode op) {
    return op == IBV_WR_RDMA_WRITE || op == IBV_WR_RDMA_WRITE_WITH_IMM;
}

static bool has_imm(enum ibv_wr_opcode op) {
    return op == IBV_WR_SEND_WITH_IMM || op == IBV_WR_RDMA_WRITE_WITH_IMM;
}

static bool takes_receive(enum ibv_wr_opcode op) {
    return op == IBV_WR_SEND || has_imm(op);
}

static void check_received(const struct ibv_wc *wc, enum ibv_wr_opcode op, size_t len, uint32_t imm) {
    CHECK(wc->opcode == (is_write(op) ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV), "opcode %d", wc->opcode);
    CHECK(wc->byte_len == len, "byte_len %u, sent %zu", wc->byte_len, len);
    CHECK(!!(wc->wc_flags & IBV_WC_WITH_IMM) == has_imm(op));
    if (has_imm(op)) CHECK(wc->imm_data == htobe32(imm), "imm_data %x, sent %x", be32toh(wc->imm_data), imm);
}

// ---- rc, uc, ud: one message at a time, every operation, many lengths and offsets, from either side

static size_t header_room(void) {
    return side.options.type == IBV_QPT_UD ? 40 : 0;
}

// A UD receive begins with the sender's IPv6 header or, at the end of its room, IPv4 header.
static void check_header(const char *header, const struct ibv_wc *wc) {
    bool is_v4 = memcmp(side.gid.raw, (uint8_t[12]){[10] = 0xff, 0xff}, 12) == 0;
    size_t at = is_v4 ? 32 : 8, len = is_v4 ? 4 : 16;
    CHECK(wc->wc_flags & IBV_WC_GRH);
    CHECK(wc->src_qp == remote.qpn, "src_qp %u", wc->src_qp);
    CHECK(memcmp(header + at, remote.gid.raw + 16 - len, len) == 0, "the source address");
    CHECK(memcmp(header + at + len, side.gid.raw + 16 - len, len) == 0, "the destination address");
}

static void move(bool sending, enum ibv_wr_opcode op, size_t offset, size_t len, uint32_t pattern) {
    bool has_target = (op == IBV_WR_RDMA_READ) == sending;
    size_t header = sending ? 0 : header_room();
    if (has_target) memset(side.buffer + offset - GUARD, 0, len + header + 2 * GUARD);
    if (!has_target) fill(side.buffer + offset, len, pattern);
    if (!sending && takes_receive(op)) {
        struct ibv_sge sge = {(uintptr_t)side.buffer + offset, (uint32_t)(len + header), side.mr->lkey};
        post_recv(&side, 77, &sge, is_write(op) ? 0 : 1);
    }
    meet(pattern);
    if (sending) {
        struct request r;
        request(&r, &side, op, offset, len)->wr.imm_data = htobe32(pattern);
        post_send(&side, &r.wr);
        completion(IBV_WC_SUCCESS);
    } else if (takes_receive(op)) {
        struct ibv_wc wc = completion(IBV_WC_SUCCESS);
        check_received(&wc, op, len + header, pattern);
        if (header) check_header(side.buffer + offset, &wc);
    }
    // An unreliable WRITE completes when it has left; a message behind it tells that it has arrived.
    if (side.options.type == IBV_QPT_UC && op == IBV_WR_RDMA_WRITE)
        move(sending, IBV_WR_SEND_WITH_IMM, 3 << 20, 8, pattern ^ 0x80000000);
    meet(pattern);
    if (!has_target) return;
    char *at = side.buffer + offset + header;
    CHECK(matches(at, len, pattern), "opcode %d, %zu bytes at %zu", op, len, offset);
    CHECK(all_zero(side.buffer + offset - GUARD, GUARD) && all_zero(at + len, GUARD),
          "bytes around the target changed: opcode %d, %zu bytes at %zu", op, len, offset);
}

static void move_all(const enum ibv_wr_opcode *ops, size_t count) {
    static const size_t LENGTHS[] = {0, 1, 2, 3, 4, 5, 63, 984, 1023, 1024, 1025, 2048, 4097, 65535, (1 << 20) + 3};
    static const size_t OFFSETS[] = {4096, 4096 - 3};
    uint32_t pattern = 0;
    for (size_t op = 0; op < count; op++)
        for (size_t l = 0; l < sizeof LENGTHS / sizeof *LENGTHS && LENGTHS[l] <= longest; l++)
            for (size_t at = 0; at < sizeof OFFSETS / sizeof *OFFSETS; at++)
                for (int from_server = 0; from_server < 2; from_server++)
                    move(is_server == from_server, ops[op], OFFSETS[at], LENGTHS[l], ++pattern);
    printf("%u transfers\n", pattern);
}

static void case_move(void) {
    static const enum ibv_wr_opcode OPS[] = {IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, IBV_WR_RDMA_WRITE,
                                             IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_RDMA_READ};
    if (side.options.type == IBV_QPT_UD && longest > 1024) longest = 1024;
    move_all(OPS, side.options.type == IBV_QPT_RC ? 5 : side.options.type == IBV_QPT_UC ? 4 : 2);
}

// ---- soak: both sides at once, 32 work requests of random kinds in flight, atomics among them

enum { WINDOW = 32, SLICE = 32 << 10, AREA = WINDOW * SLICE };
// Where in the buffer: what is sent from, what arrives, what READs bring, what the other side reads; the counters last.
enum { FROM = 0, ARRIVALS = AREA, FETCHED = 2 * AREA, OFFERED = 3 * AREA, COUNTERS = 4 * AREA - 64 };

struct task {
    enum ibv_wr_opcode op;
    size_t at;  // within its area
    size_t len;
    uint32_t pattern;
    bool is_inline, is_signaled;
    uint64_t compare, add, before; // atomics; `before` is what they must find
    size_t counter;
    size_t cuts[2]; // where scatter/gather elements end
};

// What an end's atomics have made of the other's counters: an adder and a swapper.
struct counters {
    uint64_t value[2];
};

static uint64_t random_state;

static uint64_t random_below(uint64_t limit) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (random_state >> 11) % limit;
}

static bool is_atomic(const struct task *task) {
    return task->op == IBV_WR_ATOMIC_CMP_AND_SWP || task->op == IBV_WR_ATOMIC_FETCH_AND_ADD;
}

static void plan_atomic(struct task *task, struct counters *counters) {
    task->counter = task->op == IBV_WR_ATOMIC_CMP_AND_SWP;
    task->before = counters->value[task->counter];
    task->add = random_below(UINT64_MAX);
    task->compare = task->before + random_below(2);
    task->len = 8;
    task->is_inline = false;
    if (task->counter == 0) counters->value[0] += task->add;
    else if (task->compare == task->before) counters->value[1] = task->add;
}

// What the server (or the client) does in a round; both sides plan both, and plan the same.
static void plan(struct task *tasks, bool of_server, unsigned round, struct counters *counters) {
    static const enum ibv_wr_opcode OPS[] = {
        IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_RDMA_READ,
        IBV_WR_RDMA_READ, IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_ATOMIC_CMP_AND_SWP};
    static const size_t LONGEST[] = {64, 64, 1100, 5000, SLICE - 2 * GUARD};
    random_state = 0x9e3779b97f4a7c15 * (2 * round + of_server + 1);
    for (unsigned i = 0; i < WINDOW; i++) {
        struct task *task = &tasks[i];
        *task = (struct task){.op = OPS[random_below(is_plain[of_server] ? 4 : 8)], .len = random_below(LONGEST[random_below(5)] + 1),
                              .pattern = (uint32_t)(random_state >> 16), .is_signaled = i % 8 == 7 || random_below(2)};
        task->is_inline = task->op != IBV_WR_RDMA_READ && task->len <= side.options.inline_len && random_below(2);
        task->at = i * SLICE + random_below(SLICE - task->len - GUARD);
        if (is_atomic(task)) plan_atomic(task, counters);
        task->cuts[0] = random_below(task->len + 1);
        task->cuts[1] = task->cuts[0] + random_below(task->len - task->cuts[0] + 1);
    }
}

static size_t local_area(const struct task *task) {
    return task->op == IBV_WR_RDMA_READ || is_atomic(task) ? FETCHED : FROM;
}

static int pieces(struct ibv_sge *sges, const struct task *task, size_t area) {
    size_t ends[] = {task->cuts[0], task->cuts[1], task->len}, begin = 0;
    if (is_atomic(task)) ends[0] = ends[1] = task->len;
    int count = 0;
    for (int i = 0; i < 3; i++) {
        // An element of no bytes would stand for 2^31 of them in some devices.
        if (ends[i] > begin)
            sges[count++] = (struct ibv_sge){(uintptr_t)side.buffer + area + task->at + begin,
                                             (uint32_t)(ends[i] - begin), side.mr->lkey};
        begin = ends[i];
    }
    return count;
}

static void prepare(const struct task *own, const struct task *theirs) {
    memset(side.buffer + ARRIVALS, 0, 2 * AREA);
    for (uint64_t i = 0; i < WINDOW; i++) {
        if (local_area(&own[i]) == FROM) fill(side.buffer + FROM + own[i].at, own[i].len, own[i].pattern);
        if (theirs[i].op == IBV_WR_RDMA_READ) fill(side.buffer + OFFERED + theirs[i].at, theirs[i].len, theirs[i].pattern);
        if (takes_receive(theirs[i].op)) {
            struct ibv_sge sges[3];
            int count = is_write(theirs[i].op) ? 0 : pieces(sges, &theirs[i], ARRIVALS);
            post_recv(&side, i, sges, count);
        }
    }
}

static void post_task(const struct task *task, uint64_t id) {
    struct ibv_sge sges[3];
    struct ibv_send_wr wr = {.wr_id = WINDOW + id, .sg_list = sges, .num_sge = pieces(sges, task, local_area(task)),
                             .opcode = task->op, .imm_data = htobe32(task->pattern)};
    wr.send_flags = (task->is_signaled ? IBV_SEND_SIGNALED : 0) | (task->is_inline ? IBV_SEND_INLINE : 0);
    if (is_atomic(task)) {
        wr.wr.atomic.remote_addr = remote.addr + COUNTERS + 8 * task->counter;
        wr.wr.atomic.rkey = remote.rkey;
        wr.wr.atomic.compare_add = task->counter ? task->compare : task->add;
        wr.wr.atomic.swap = task->add;
    } else {
        wr.wr.rdma.remote_addr = remote.addr + (task->op == IBV_WR_RDMA_READ ? OFFERED : ARRIVALS) + task->at;
        wr.wr.rdma.rkey = remote.rkey;
    }
    post_send(&side, &wr);
}

static void reap(const struct task *own, const struct task *theirs) {
    unsigned wanted = 0;
    uint64_t next_own = WINDOW, next_theirs = 0;
    for (int i = 0; i < WINDOW; i++) wanted += own[i].is_signaled + takes_receive(theirs[i].op);
    for (; wanted; wanted--) {
        struct ibv_wc wc = completion(IBV_WC_SUCCESS);
        uint64_t *next = wc.wr_id < WINDOW ? &next_theirs : &next_own;
        CHECK(wc.wr_id >= *next && wc.wr_id < 2 * WINDOW, "wr_id %llu after %llu", (unsigned long long)wc.wr_id,
              (unsigned long long)*next);
        *next = wc.wr_id + 1;
        if (wc.wr_id >= WINDOW) continue;
        const struct task *task = &theirs[wc.wr_id];
        check_received(&wc, task->op, task->len, task->pattern);
    }
}

static void check_slice(size_t area, const struct task *task) {
    size_t slice = area + task->at / SLICE * SLICE, at = area + task->at;
    CHECK(matches(side.buffer + at, task->len, task->pattern), "opcode %d, %zu bytes at %zu", task->op, task->len, at);
    CHECK(all_zero(side.buffer + slice, at - slice) && all_zero(side.buffer + at + task->len, slice + SLICE - at - task->len),
          "bytes around the target changed: opcode %d, %zu bytes at %zu", task->op, task->len, at);
}

static void check_round(const struct task *own, const struct task *theirs) {
    for (int i = 0; i < WINDOW; i++) {
        if (own[i].op == IBV_WR_RDMA_READ) check_slice(FETCHED, &own[i]);
        if (takes_receive(theirs[i].op) || is_write(theirs[i].op)) check_slice(ARRIVALS, &theirs[i]);
        if (!is_atomic(&own[i])) continue;
        uint64_t found;
        memcpy(&found, side.buffer + FETCHED + own[i].at, 8);
        CHECK(found == own[i].before, "atomic %d found %llx instead of %llx", i, (unsigned long long)found,
              (unsigned long long)own[i].before);
    }
}

static void case_soak(void) {
    struct task tasks[2][WINDOW];
    struct counters counters[2] = {0};
    for (unsigned round = 0; round < rounds; round++) {
        for (int of_server = 0; of_server < 2; of_server++) plan(tasks[of_server], of_server, round, &counters[of_server]);
        const struct task *own = tasks[is_server], *theirs = tasks[!is_server];
        prepare(own, theirs);
        meet(2 * round);
        for (unsigned i = 0; i < WINDOW; i++) post_task(&own[i], i);
        reap(own, theirs);
        meet(2 * round + 1);
        check_round(own, theirs);
        CHECK(memcmp(side.buffer + COUNTERS, counters[!is_server].value, 16) == 0, "the counters, round %u", round);
    }
    printf("%u rounds\n", rounds);
}

// ---- rnr: the receive is posted late

static void case_rnr(void) {
    for (uint32_t i = 0; i < 8; i++) {
        bool sending = is_server == i % 2;
        size_t len = 1 + 1500 * i;
        struct request r;
        fill(side.buffer, len, sending ? i : ~i);
        meet(i);
        if (sending) {
            post_send(&side, &request(&r, &side, IBV_WR_SEND, 0, len)->wr);
        } else {
            usleep(20000);
            struct ibv_sge sge = {(uintptr_t)side.buffer, (uint32_t)len, side.mr->lkey};
            post_recv(&side, 77, &sge, 1);
        }
        completion(IBV_WC_SUCCESS);
        meet(i);
        CHECK(matches(side.buffer, len, i), "message %u", i);
    }
    puts("8 late receives");
}

// ---- errors: what the other side refuses; a queue pair of its own for each

static void refused(bool sending, uint32_t place, struct ibv_send_wr *wr, enum ibv_wc_status status) {
    meet(place);
    // Some devices refuse to send what the other side would refuse.
    if (sending && try_post_send(&side, wr) != EINVAL) {
        struct ibv_wc wc = poll_one(side.cq, TIMEOUT_S);
        // The kernel's device takes a message that is too long for an error of its own.
        bool also = status == IBV_WC_REM_INV_REQ_ERR && wc.status == IBV_WC_REM_OP_ERR;
        CHECK(wc.status == status || also, "%u: %s", place, ibv_wc_status_str(wc.status));
        printf("%u %s\n", place, ibv_wc_status_str(wc.status));
    }
    meet(place);
    // The refusing side may have flushed receives; they go with the queue pair.
    side_open_qp(&side);
    struct ibv_wc wc;
    while (ibv_poll_cq(side.cq, 1, &wc) > 0) {}
    join();
}

static void case_errors(void) {
    uint32_t place = 0;
    for (int from_server = 0; from_server < 2; from_server++) {
        bool sending = is_server == from_server;
        struct request r;
        const enum ibv_wr_opcode ops[] = {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ};
        for (int i = 0; i < 2; i++) {
            request(&r, &side, ops[i], 0, 5000)->wr.wr.rdma.rkey ^= 0xff;
            refused(sending, ++place, &r.wr, IBV_WC_REM_ACCESS_ERR);
            request(&r, &side, ops[i], 0, 5000)->wr.wr.rdma.remote_addr = remote.addr + side.options.len - 4999;
            refused(sending, ++place, &r.wr, IBV_WC_REM_ACCESS_ERR);
        }
        for (int i = 0; i < 2; i++) {
            request(&r, &side, IBV_WR_ATOMIC_FETCH_AND_ADD, 0, 8)->wr.wr.atomic.remote_addr = remote.addr + 4 * (uint64_t)i;
            r.wr.wr.atomic.rkey = i == 0 ? remote.rkey ^ 0xff : remote.rkey;
            refused(sending, ++place, &r.wr, i == 0 ? IBV_WC_REM_ACCESS_ERR : IBV_WC_REM_INV_REQ_ERR);
        }
        struct ibv_sge sge = {(uintptr_t)side.buffer, 1500, side.mr->lkey};
        if (!sending) post_recv(&side, 77, &sge, 1);
        refused(sending, ++place, &request(&r, &side, IBV_WR_SEND, 0, 1501)->wr, IBV_WC_REM_INV_REQ_ERR);
    }
    move(is_server, IBV_WR_RDMA_WRITE, 4096, 5000, 1);
    printf("%u refusals\n", place);
}

// ---- the two sides

static int listen_on(const char *port) {
    struct sockaddr_in6 at = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)atoi(port))};
    int one = 1, zero = 0, listener = socket(AF_INET6, SOCK_STREAM, 0);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    setsockopt(listener, IPPROTO_IPV6, IPV6_V6ONLY, &zero, sizeof zero);
    CHECK(bind(listener, (struct sockaddr *)&at, sizeof at) == 0 && listen(listener, 1) == 0);
    int connection = accept(listener, NULL, NULL);
    CHECK(connection >= 0);
    close(listener);
    return connection;
}

static int connect_to(const char *server, const char *port) {
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found;
    CHECK(getaddrinfo(server, port, &hints, &found) == 0, "%s", server);
    int connection = socket(found->ai_family, SOCK_STREAM, 0);
    CHECK(connect(connection, found->ai_addr, found->ai_addrlen) == 0, "%s", server);
    freeaddrinfo(found);
    return connection;
}

static const struct {
    const char *name;
    enum ibv_qp_type type;
    void (*run)(void);
} CASES[] = {
    {"rc", IBV_QPT_RC, case_move},   {"uc", IBV_QPT_UC, case_move}, {"ud", IBV_QPT_UD, case_move},
    {"soak", IBV_QPT_RC, case_soak}, {"rnr", IBV_QPT_RC, case_rnr}, {"errors", IBV_QPT_RC, case_errors},
};

int main(int argc, char **argv) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    const char *port = "18515";
    uint8_t gid_index = 1;
    for (int option; (option = getopt(argc, argv, "g:p:n:l:sc")) != -1;) {
        if (option == 'g') gid_index = (uint8_t)atoi(optarg);
        else if (option == 'p') port = optarg;
        else if (option == 'n') rounds = (unsigned)atoi(optarg);
        else if (option == 'l') longest = (size_t)atoll(optarg);
        else if (option == 's') is_plain[1] = true;
        else if (option == 'c') is_plain[0] = true;
        else return 2;
    }
    if (optind == argc) return 2;
    is_server = optind + 1 == argc;
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        if (strcmp(argv[optind], CASES[i].name) != 0) continue;
        tcp = is_server ? listen_on(port) : connect_to(argv[optind + 1], port);
        setsockopt(tcp, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
        setsockopt(tcp, SOL_SOCKET, SO_RCVTIMEO, &(struct timeval){.tv_sec = TIMEOUT_S}, sizeof(struct timeval));
        open_side(CASES[i].type, gid_index);
        CASES[i].run();
        meet(UINT32_MAX);
        side_close(&side);
        return 0;
    }
    return 2;
}
