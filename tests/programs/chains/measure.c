// Times of chains and of other ways to the same end: measure server | measure client ADDRESS SAMPLES [writers] | measure orders SAMPLES.
// Each figure is a line `NAME TAB MEDIAN TAB P99`, in microseconds; ways of one figure are taken by turns.
#include "check.h"
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/stat.h>

enum { PORT = 18643, MESSAGE = 128, LARGEST = 65536, BUCKET = 24, HOPS = 8, SMALL = 64, TURNS = 3, NUM_SIZES = 6, MOST_QPS = 16 };
static const uint32_t SIZES[NUM_SIZES] = {64, 256, 1024, 4096, 16384, 65536};
static const struct rdmesh_hash_shape HASH = {.buckets = 1024, .records = 64, .record_size = LARGEST + 64};

enum { LOCAL, PORTABLE, UNROLLED, BREAK, LOOP, NUM_SERVICES };

// Commands of the client's, on the stream.
enum { POLL = 'p', EVENTS = 'e', IDLE = 'i', WRITE = 'w', STILL = 's' };

static struct ibv_context *context;
static struct ibv_pd *pd;

struct question {
    uint64_t address;
    uint32_t rkey, length;
};

static struct ibv_qp *make_qp(struct ibv_cq *cq, uint32_t depth) {
    struct ibv_qp_init_attr init = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
                                    .cap = {.max_send_wr = depth, .max_recv_wr = depth, .max_send_sge = 1, .max_recv_sge = 1}};
    struct ibv_qp *qp = ibv_create_qp(pd, &init);
    CHECK(qp);
    return qp;
}

// ---- The server: chains, and a processor that answers.

static struct rdmesh_list_shape list_shape(int which) {
    return (struct rdmesh_list_shape){.nodes = HOPS, .record_size = 128, .walk = (uint32_t)(which - UNROLLED), .hops = HOPS};
}

static struct rdmesh_service *install(int which) {
    struct rdmesh_list_shape list = list_shape(which);
    struct rdmesh_chain *chain = which <= PORTABLE ? rdmesh_hash_chain(&HASH, (enum rdmesh_design)which) : rdmesh_list_chain(&list, RDMESH_DESIGN_LOCAL);
    CHECK(chain);
    struct rdmesh_service *service = rdmesh_chain_install(chain, pd, NULL);
    CHECK(service);
    rdmesh_chain_free(chain);
    return service;
}

static char value[LARGEST];
static struct rdmesh_hash *tables[2];
static volatile bool writes;

static void key_of(int number, char *key) { snprintf(key, 16, "%d", number); }

static void fill(struct rdmesh_service *service, int which) {
    char key[16];
    if (which <= PORTABLE) {
        tables[which] = rdmesh_hash_open(&HASH, service);
        for (int i = 0; i < NUM_SIZES; i++) {
            key_of((int)SIZES[i], key);
            CHECK(tables[which] && rdmesh_hash_insert(tables[which], key, strlen(key), value, SIZES[i]) == 0);
        }
        return;
    }
    struct rdmesh_list_shape shape = list_shape(which);
    struct rdmesh_list *list = rdmesh_list_open(&shape, service);
    uint64_t head = 0;
    for (int i = HOPS; i >= 1; i--) {
        key_of(i, key);
        CHECK(list && rdmesh_list_push(list, &head, key, strlen(key), value, SMALL) == 0);
    }
}

// A program that changes its table all the time.
static void *write_values(void *unused) {
    for (uint64_t n = 0;; n++) {
        if (!writes) {
            usleep(1000);
            continue;
        }
        rdmesh_hash_insert(tables[LOCAL], "written", 7, &n, sizeof n);
        rdmesh_hash_reclaim(tables[LOCAL]);
    }
    return unused;
}

// Answers one message, if there is one.
static bool answer(struct ibv_qp *qp, struct ibv_mr *mr) {
    struct ibv_wc wc;
    if (ibv_poll_cq(qp->recv_cq, 1, &wc) == 0) return false;
    CHECK(wc.status == IBV_WC_SUCCESS);
    if (wc.opcode != IBV_WC_RECV) return true;
    struct question *question = (struct question *)mr->addr;
    struct ibv_sge from = {.addr = (uintptr_t)mr->addr + MESSAGE, .length = question->length, .lkey = mr->lkey};
    struct ibv_send_wr send = {.sg_list = &from, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE_WITH_IMM, .send_flags = IBV_SEND_SIGNALED,
                               .wr.rdma = {.remote_addr = question->address, .rkey = question->rkey}}, *bad_send;
    struct ibv_sge to = {.addr = (uintptr_t)mr->addr, .length = MESSAGE, .lkey = mr->lkey};
    struct ibv_recv_wr receive = {.sg_list = &to, .num_sge = 1}, *bad_receive;
    CHECK(ibv_post_recv(qp, &receive, &bad_receive) == 0 && ibv_post_send(qp, &send, &bad_send) == 0);
    return true;
}

static void answer_events(int stream, struct ibv_comp_channel *channel, struct ibv_qp *qp, struct ibv_mr *mr) {
    struct pollfd wait[2] = {{.fd = channel->fd, .events = POLLIN}, {.fd = stream, .events = POLLIN}};
    CHECK(ibv_req_notify_cq(qp->recv_cq, 0) == 0);
    // What came before the queue was armed makes no event.
    while (answer(qp, mr)) {}
    while (poll(wait, 2, -1) > 0 && !(wait[1].revents & (POLLIN | POLLHUP))) {
        struct ibv_cq *cq;
        void *cq_context;
        CHECK(ibv_get_cq_event(channel, &cq, &cq_context) == 0);
        ibv_ack_cq_events(cq, 1);
        CHECK(ibv_req_notify_cq(cq, 0) == 0);
        while (answer(qp, mr)) {}
    }
}

static void answer_until_told(int stream, struct ibv_qp *qp, struct ibv_mr *mr) {
    struct pollfd told = {.fd = stream, .events = POLLIN};
    for (uint32_t n = 0; n % 4096 != 4095 || poll(&told, 1, 0) == 0; n++) answer(qp, mr);
}

static void serve(void) {
    struct rdmesh_service *services[NUM_SERVICES];
    for (int i = 0; i < NUM_SERVICES; i++) fill(services[i] = install(i), i);
    struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
    struct ibv_cq *cq = ibv_create_cq(context, 64, NULL, channel, 0);
    char *memory = aligned_alloc(4096, 4096 + LARGEST);
    struct ibv_mr *mr = ibv_reg_mr(pd, memory, 4096 + LARGEST, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE);
    CHECK(channel && cq && mr);
    struct ibv_qp *plain = make_qp(cq, 8);
    int listener = listen_at(PORT);
    puts("listening");
    int stream = accept(listener, NULL, NULL);
    for (int i = 0; i < NUM_SERVICES; i++) {
        char count = 0;
        while (rdmesh_service_qp(services[i], (uint32_t)count)) count++;
        CHECK(write(stream, &count, 1) == 1);
        for (int n = 0; n < count; n++) join(stream, rdmesh_service_qp(services[i], (uint32_t)n), 0);
    }
    join(stream, plain, IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE);
    struct ibv_sge to = {.addr = (uintptr_t)memory, .length = MESSAGE, .lkey = mr->lkey};
    struct ibv_recv_wr receive = {.sg_list = &to, .num_sge = 1}, *bad;
    CHECK(ibv_post_recv(plain, &receive, &bad) == 0);
    struct question where = {.address = (uintptr_t)memory + MESSAGE, .rkey = mr->rkey};
    CHECK(write(stream, &where, sizeof where) == sizeof where);
    pthread_t writer;
    CHECK(pthread_create(&writer, NULL, write_values, NULL) == 0);
    for (char command; read(stream, &command, 1) == 1;) {
        if (command == WRITE || command == STILL) writes = command == WRITE;
        CHECK(write(stream, &command, 1) == 1);
        if (command == POLL) answer_until_told(stream, plain, mr);
        if (command == EVENTS) answer_events(stream, channel, plain, mr);
    }
}

// ---- The client.

struct link {
    struct ibv_qp *qps[MOST_QPS];
    char count;
    struct ibv_cq *cq;
    struct ibv_qp *used; // whose receive request the last reply took
};

static struct link links[NUM_SERVICES + 1];
static struct link *const plain = &links[NUM_SERVICES];
static struct question target; // the server's memory
static char *memory;           // a message, a reply
static struct ibv_mr *region;
static struct rdmesh_hash_client *keys;
static struct rdmesh_list_client *walks;
static int samples;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e6 + (double)time.tv_nsec / 1e3;
}

static struct ibv_wc finish(struct link *link) {
    struct ibv_wc wc;
    while (ibv_poll_cq(link->cq, 1, &wc) == 0) {}
    if (wc.status != IBV_WC_SUCCESS) die("%s", ibv_wc_status_str(wc.status));
    for (int n = 0; wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM && n < link->count; n++) {
        if (link->qps[n]->qp_num == wc.qp_num) link->used = link->qps[n];
    }
    return wc;
}

// Posts a receive request in the place of the one that the last reply took.
static void expect(struct link *link) {
    struct ibv_recv_wr receive = {.num_sge = 0}, *bad;
    if (link->used) CHECK(ibv_post_recv(link->used, &receive, &bad) == 0);
    link->used = NULL;
}

static void send_message(struct link *link, int length) {
    CHECK(length > 0);
    struct ibv_sge from = {.addr = (uintptr_t)memory, .length = (uint32_t)length, .lkey = region->lkey};
    struct ibv_send_wr send = {.sg_list = &from, .num_sge = 1, .opcode = IBV_WR_SEND}, *bad;
    CHECK(ibv_post_send(link->qps[0], &send, &bad) == 0);
}

static void judge(const struct rdmesh_answer *answer, uint32_t length) {
    if (answer->kind != RDMESH_VALUE || answer->length != length) die("answer %u of %zu bytes", answer->kind, answer->length);
}

// A get by chain.
static void get(int which, uint32_t size) {
    char key[16];
    key_of((int)size, key);
    uint32_t tag;
    send_message(&links[which], rdmesh_hash_request(keys, key, strlen(key), (uintptr_t)memory + MESSAGE, region->rkey, memory, MESSAGE, &tag));
    struct ibv_wc wc = finish(&links[which]);
    struct rdmesh_answer answer;
    CHECK(rdmesh_hash_reply(keys, tag, memory + MESSAGE, wc.byte_len, &answer) == 0);
    judge(&answer, size);
}

static void get_local(uint32_t size) { get(LOCAL, size); }
static void get_portable(uint32_t size) { get(PORTABLE, size); }

static void post_read(uint64_t at, uint32_t length, int flags) {
    struct ibv_sge to = {.addr = (uintptr_t)memory + MESSAGE, .length = length, .lkey = region->lkey};
    struct ibv_send_wr read = {.sg_list = &to, .num_sge = 1, .opcode = IBV_WR_RDMA_READ, .send_flags = (unsigned)flags,
                               .wr.rdma = {.remote_addr = target.address + at, .rkey = target.rkey}}, *bad;
    CHECK(ibv_post_send(plain->qps[0], &read, &bad) == 0);
}

static void read_once(uint32_t size) {
    post_read(0, size, IBV_SEND_SIGNALED);
    finish(plain);
}

// The client looks into both buckets, and then reads the value.
static void one_sided(uint32_t size) {
    post_read(0, BUCKET, 0);
    post_read(4096, BUCKET, IBV_SEND_SIGNALED);
    finish(plain);
    read_once(size);
}

static void two_sided(uint32_t size) {
    struct question question = {.address = (uintptr_t)memory + MESSAGE, .rkey = region->rkey, .length = size};
    memcpy(memory, &question, sizeof question);
    send_message(plain, sizeof question);
    finish(plain);
}

static void walk(int which, uint32_t position) {
    char key[16];
    key_of((int)position, key);
    uint32_t tag;
    send_message(&links[which], rdmesh_list_request(walks, 32 * HOPS, key, strlen(key), (uintptr_t)memory + MESSAGE, region->rkey, memory, MESSAGE, &tag));
    struct ibv_wc wc = finish(&links[which]);
    struct rdmesh_answer answer;
    CHECK(rdmesh_list_reply(walks, tag, memory + MESSAGE, wc.byte_len, &answer) == 0);
    judge(&answer, SMALL);
}

static void walk_unrolled(uint32_t position) { walk(UNROLLED, position); }
static void walk_break(uint32_t position) { walk(BREAK, position); }
static void walk_loop(uint32_t position) { walk(LOOP, position); }

static void walk_one_sided(uint32_t position) {
    for (uint32_t i = 0; i < position; i++) read_once(32);
    read_once(SMALL);
}

struct way {
    const char *name;
    void (*run)(uint32_t argument);
    struct link *receives; // the link on which it takes a reply
    char server;           // what the server does meanwhile
};

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void report(const char *name, double *times, int count) {
    qsort(times, (size_t)count, sizeof *times, by_value);
    printf("%s\t%.3f\t%.3f\n", name, times[count / 2], times[(int)((double)count * 0.99)]);
}

static void tell(int stream, char command) {
    char done;
    CHECK(write(stream, &command, 1) == 1 && read(stream, &done, 1) == 1 && done == command);
}

// All ways of a figure by turns.
static void compare(int stream, const char *figure, const struct way *ways, int count, uint32_t argument) {
    int each = samples / TURNS;
    double *times = malloc(sizeof *times * (size_t)(count * TURNS * each));
    for (int turn = 0; turn < TURNS; turn++) {
        for (int i = 0; i < count; i++) {
            tell(stream, ways[i].server);
            for (int n = -each / 10; n < each; n++) {
                if (ways[i].receives) expect(ways[i].receives);
                double begin = now();
                ways[i].run(argument);
                if (n >= 0) times[(i * TURNS + turn) * each + n] = now() - begin;
            }
            tell(stream, IDLE);
        }
    }
    for (int i = 0; i < count; i++) {
        char name[128];
        snprintf(name, sizeof name, "%s: %s", figure, ways[i].name);
        report(name, times + i * TURNS * each, TURNS * each);
    }
    free(times);
}

static void open_link(int stream, struct link *link, char count) {
    link->count = count;
    link->cq = ibv_create_cq(context, 64, NULL, NULL, 0);
    CHECK(link->cq && count <= MOST_QPS);
    for (int n = 0; n < count; n++) {
        link->qps[n] = link->used = make_qp(link->cq, 16);
        join(stream, link->qps[n], IBV_ACCESS_REMOTE_WRITE);
        expect(link);
    }
}

static const struct way GETS[] = {
    {"one READ", read_once, NULL, IDLE},
    {"chain, LOCAL", get_local, &links[LOCAL], IDLE},
    {"chain, portable", get_portable, &links[PORTABLE], IDLE},
    {"one-sided", one_sided, NULL, IDLE},
    {"two-sided, polling", two_sided, &links[NUM_SERVICES], POLL},
    {"two-sided, events", two_sided, &links[NUM_SERVICES], EVENTS},
};
static const struct way WALKS[] = {
    {"chain, unrolled", walk_unrolled, &links[UNROLLED], IDLE},
    {"chain, break", walk_break, &links[BREAK], IDLE},
    {"chain, loop", walk_loop, &links[LOOP], IDLE},
    {"one-sided", walk_one_sided, NULL, IDLE},
};

static void call(const char *address, bool only_writers) {
    char port[8], name[32], count;
    snprintf(port, sizeof port, "%d", PORT);
    int stream = connect_to(address, port);
    for (int i = 0; i < NUM_SERVICES; i++) {
        CHECK(read(stream, &count, 1) == 1);
        open_link(stream, &links[i], count);
    }
    open_link(stream, plain, 1);
    CHECK(recv(stream, &target, sizeof target, MSG_WAITALL) == sizeof target);
    memory = aligned_alloc(4096, 4096 + 2 * LARGEST);
    region = ibv_reg_mr(pd, memory, 4096 + 2 * LARGEST, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    keys = rdmesh_hash_client_new(&HASH), walks = rdmesh_list_client_new();
    CHECK(region && keys && walks);
    for (int i = 0; i < NUM_SIZES && !only_writers; i++) {
        snprintf(name, sizeof name, "get, %u B", SIZES[i]);
        compare(stream, name, GETS, sizeof GETS / sizeof GETS[0], SIZES[i]);
    }
    for (uint32_t position = 1; position <= HOPS && !only_writers; position++) {
        snprintf(name, sizeof name, "list, key %u of %d", position, HOPS);
        compare(stream, name, WALKS, sizeof WALKS / sizeof WALKS[0], position);
    }
    tell(stream, WRITE);
    compare(stream, "beside writers, 64 B", GETS, sizeof GETS / sizeof GETS[0], SMALL);
    tell(stream, STILL);
}

// ---- Orders of a chain of NOPs, by a queue pair that leads to itself.

static void loop_back(struct ibv_qp *qp) {
    char name[] = "/tmp/rdmesh-fifo-XXXXXX";
    CHECK(mkdtemp(name) && chdir(name) == 0 && mkfifo("fifo", 0600) == 0);
    int fifo = open("fifo", O_RDWR);
    join(fifo, qp, IBV_ACCESS_LOCAL_WRITE);
    close(fifo);
    CHECK(unlink("fifo") == 0 && chdir("/") == 0 && rmdir(name) == 0);
}

static struct rdmesh_queue *manage(struct ibv_qp *qp, uint32_t slots) {
    struct rdmesh_queue *queue = rdmesh_queue_manage(qp, &(struct rdmesh_manage){.group = 1, .sends = 1, .send_cycle = slots});
    CHECK(queue);
    return queue;
}

enum order { QUEUE, COMPLETION, DOORBELL };

// Times until the last of `count` NOPs has completed.
static void time_order(const char *name, enum order order, uint32_t count) {
    struct ibv_cq *done = ibv_create_cq(context, 1024, NULL, NULL, 0), *other = ibv_create_cq(context, 1, NULL, NULL, 0);
    struct ibv_cq_init_attr_ex endless = {.cqe = 1, .comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS, .flags = IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN};
    struct ibv_cq *counted = ibv_cq_ex_to_cq(ibv_create_cq_ex(context, &endless));
    uint32_t slots = order == QUEUE ? count : order == COMPLETION ? 2 * count : 2 * count + 1;
    struct ibv_qp *first = make_qp(order == COMPLETION ? counted : done, slots), *targets = make_qp(counted, count + 1), *starter = make_qp(other, 8);
    struct ibv_qp *last = make_qp(done, 1);
    struct rdmesh_queue *queue = manage(first, slots), *target = manage(targets, count), *end = manage(last, 1);
    struct rdmesh_request nop = {.op = RDMESH_NOP, .flags = RDMESH_SIGNALED}, silent = {.op = RDMESH_NOP};
    for (uint32_t i = 0; i < count; i++) {
        struct rdmesh_request wait = {.op = RDMESH_WAIT, .cq = counted, .count = i + 1, .step = count};
        struct rdmesh_request enable = {.op = RDMESH_ENABLE, .qp = targets, .count = i + 1, .step = count};
        struct rdmesh_request enable_last = {.op = RDMESH_ENABLE, .qp = last, .count = 1, .is_relative = 1};
        CHECK(rdmesh_queue_emit(target, i, &nop) == 0);
        if (order == QUEUE) CHECK(rdmesh_queue_emit(queue, i, i + 1 == count ? &nop : &silent) == 0);
        if (order == COMPLETION) CHECK(rdmesh_queue_emit(queue, 2 * i, &nop) == 0 && rdmesh_queue_emit(queue, 2 * i + 1, i + 1 == count ? &enable_last : &wait) == 0);
        if (order == DOORBELL) CHECK(rdmesh_queue_emit(queue, 2 * i, &enable) == 0 && rdmesh_queue_emit(queue, 2 * i + 1, &wait) == 0);
    }
    if (order == DOORBELL) CHECK(rdmesh_queue_emit(queue, 2 * count, &nop) == 0);
    CHECK(rdmesh_queue_emit(end, 0, &nop) == 0);
    struct ibv_qp *all[] = {first, targets, starter, last};
    for (int i = 0; i < 4; i++) loop_back(all[i]);
    double *times = malloc(sizeof *times * (size_t)samples);
    for (int n = -samples / 10; n < samples; n++) {
        // ENABLE, as any verbs program posts it.
        struct ibv_sge operands = {.addr = slots, .lkey = first->handle};
        struct ibv_send_wr enable = {.sg_list = &operands, .num_sge = 1, .opcode = (enum ibv_wr_opcode)0xf2, .imm_data = 1}, *bad;
        struct ibv_wc wc;
        double begin = now();
        CHECK(ibv_post_send(starter, &enable, &bad) == 0);
        while (ibv_poll_cq(done, 1, &wc) == 0) {}
        if (n >= 0) times[n] = now() - begin;
        CHECK(wc.status == IBV_WC_SUCCESS);
    }
    report(name, times, samples);
    free(times);
    struct rdmesh_queue *queues[] = {queue, target, end};
    for (int i = 0; i < 3; i++) rdmesh_queue_free(queues[i]);
    for (int i = 0; i < 4; i++) CHECK(ibv_destroy_qp(all[i]) == 0);
    struct ibv_cq *cqs[] = {done, other, counted};
    for (int i = 0; i < 3; i++) CHECK(ibv_destroy_cq(cqs[i]) == 0);
}

static void time_orders(void) {
    static const char *const NAMES[] = {"queue", "completion", "doorbell"};
    for (uint32_t count = 1; count <= 64; count *= 4) {
        for (int order = 0; order < 3; order++) {
            char name[64];
            snprintf(name, sizeof name, "%u NOPs: %s order", count, NAMES[order]);
            time_order(name, (enum order)order, count);
        }
    }
}

int main(int argc, char **argv) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    context = open_device();
    pd = ibv_alloc_pd(context);
    if (argc >= 4) samples = atoi(argv[3]), call(argv[2], argc > 4);
    else if (argc == 3) samples = atoi(argv[2]), time_orders();
    else serve();
    return 0;
}
