// Services of chains of every kind, one after the other, and a client that uses plain verbs: services [SERVER]; or only some of
// them, in the LOCAL design, for another client: services - NAME...
#include "check.h"

enum { PORT = 18641, MESSAGE = 64, REPLY = 4096, SECRET = 42, MOST_QPS = 8, RECEIVES = 16 };

// ---- Both sides' view of a service.

struct client {
    struct ibv_cq *cq;
    struct ibv_qp *qps[MOST_QPS]; // one for each queue of the service that replies
    char count;
    struct ibv_mr *mr;
    unsigned char *message, *reply;
    uint32_t imm, length;
};

struct test {
    const char *name;
    struct rdmesh_chain *(*make)(enum rdmesh_design design);
    void (*fill)(struct rdmesh_service *service);
    void (*ask)(struct client *client);
};

// Sends a message, and waits for the reply; its length.
static uint32_t ask(struct client *client, int length) {
    CHECK(length > 0);
    memset(client->reply, 0xee, REPLY);
    struct ibv_sge to = {.addr = (uintptr_t)client->reply, .length = REPLY, .lkey = client->mr->lkey};
    struct ibv_sge from = {.addr = (uintptr_t)client->message, .length = (uint32_t)length, .lkey = client->mr->lkey};
    struct ibv_recv_wr receive = {.sg_list = &to, .num_sge = 1}, *bad_receive;
    struct ibv_send_wr send = {.sg_list = &from, .num_sge = 1, .opcode = IBV_WR_SEND}, *bad_send;
    // Whichever of them replies.
    for (int n = 0; n < client->count; n++) CHECK(ibv_post_recv(client->qps[n], &receive, &bad_receive) == 0);
    CHECK(ibv_post_send(client->qps[0], &send, &bad_send) == 0);
    struct ibv_wc wc = poll_one(client->cq);
    if (wc.status != IBV_WC_SUCCESS) die("%s", ibv_wc_status_str(wc.status));
    CHECK(wc.wc_flags & IBV_WC_WITH_IMM);
    client->imm = wc.imm_data;
    return client->length = wc.byte_len;
}

// The answer to numbers of so many bytes.
static uint32_t imm_of(struct client *client, int count, const uint64_t *numbers, int length) {
    for (int i = 0; i < count; i++) memcpy(client->message + i * length, &numbers[i], (size_t)length);
    ask(client, count * length);
    return client->imm;
}

static uint32_t imm_of_one(struct client *client, uint64_t number) { return imm_of(client, 1, &number, 7); }

static int says(struct rdmesh_program *p, const char *label, uint32_t imm) {
    struct rdmesh_spec spec = {.op = RDMESH_SEND_IMM, .imm = imm};
    int request = rdmesh_program_declare(p, label, &spec);
    CHECK(request > 0);
    return request;
}

static struct rdmesh_chain *built(struct rdmesh_program *p, enum rdmesh_design design) {
    struct rdmesh_chain *chain = rdmesh_program_build(p, design);
    CHECK(chain);
    rdmesh_program_free(p);
    return chain;
}

static void read_into(struct rdmesh_program *p, int memory, const struct rdmesh_span *into, uint32_t count) {
    struct rdmesh_read read = {.memory = (uint32_t)memory, .into = into, .num_into = count};
    CHECK(rdmesh_program_read(p, &read) > 0);
}

// ---- if and else

static struct rdmesh_chain *compare(enum rdmesh_design design, enum rdmesh_comparison how) {
    struct rdmesh_program *p = rdmesh_program_new("guess");
    int secret = rdmesh_program_memory(p, "secret", RDMESH_TABLE, 8), guess = rdmesh_program_argument(p, "guess", RDMESH_U56);
    int right = says(p, "right", 1), wrong = says(p, "wrong", 2);
    CHECK(secret > 0 && guess > 0 && rdmesh_program_on_request(p, 0) == 0);
    struct rdmesh_span operand = rdmesh_operand(right);
    read_into(p, secret, &operand, 1);
    struct rdmesh_value value = {.argument = (uint32_t)guess};
    struct rdmesh_condition condition = {.operand = operand, .comparison = how, .num_values = 1, .values = &value};
    struct rdmesh_outcome outcomes[] = {{(uint32_t)right, RDMESH_RUN}, {(uint32_t)wrong, RDMESH_OTHERWISE}};
    CHECK(rdmesh_program_when(p, &condition, 1, outcomes, 2, 0) == 0 && rdmesh_program_rearm(p) == 0);
    return built(p, design);
}

static struct rdmesh_chain *make_guess(enum rdmesh_design design) { return compare(design, RDMESH_EQUAL); }
static struct rdmesh_chain *make_at_most(enum rdmesh_design design) { return compare(design, RDMESH_AT_MOST); }
static struct rdmesh_chain *make_less(enum rdmesh_design design) { return compare(design, RDMESH_LESS); }

// What is listed and read again is the same.
static struct rdmesh_chain *make_text(enum rdmesh_design design) {
    char first[8192], second[8192];
    struct rdmesh_chain *chain = make_guess(design);
    CHECK(rdmesh_chain_listing(chain, first, sizeof first) < (int)sizeof first && strstr(first, "right"));
    CHECK(rdmesh_chain_message_length(chain) == 7);
    struct rdmesh_chain_cost cost;
    CHECK(rdmesh_chain_cost(chain, &cost) == 0 && cost.requests > 0 && cost.atomics == 2);
    rdmesh_chain_free(chain);
    chain = rdmesh_chain_assemble(first);
    CHECK(chain && rdmesh_chain_listing(chain, second, sizeof second) > 0 && strcmp(first, second) == 0);
    return chain;
}

static void fill_secret(struct rdmesh_service *service) {
    uint64_t length, *secret = rdmesh_service_region(service, "secret", &length);
    CHECK(secret && length == 8);
    *(volatile uint64_t *)secret = SECRET;
    CHECK_ERROR(rdmesh_service_region(service, "secrets", NULL), "no table or shared memory `secrets`");
}

static void ask_guess(struct client *client) {
    for (uint64_t guess = SECRET - 2; guess < SECRET + 3; guess++) CHECK(imm_of_one(client, guess) == (guess == SECRET ? 1 : 2));
    CHECK(imm_of_one(client, (UINT64_C(1) << 56) - 1) == 2 && imm_of_one(client, 0) == 2);
}

static void ask_at_most(struct client *client) {
    for (uint64_t bound = SECRET - 2; bound < SECRET + 3; bound++) CHECK(imm_of_one(client, bound) == (SECRET <= bound ? 1 : 2));
    CHECK(imm_of_one(client, (UINT64_C(1) << 56) - 1) == 1 && imm_of_one(client, 0) == 2);
}

static void ask_less(struct client *client) {
    for (uint64_t bound = SECRET - 2; bound < SECRET + 3; bound++) CHECK(imm_of_one(client, bound) == (SECRET < bound ? 1 : 2));
}

// ---- two words, and one of 120 bits

static struct rdmesh_chain *make_words(enum rdmesh_design design) {
    struct rdmesh_program *p = rdmesh_program_new("words");
    int secret = rdmesh_program_memory(p, "secret", RDMESH_TABLE, 16), waste = rdmesh_program_memory(p, "waste", RDMESH_SCRATCH, 1);
    int low = rdmesh_program_argument(p, "low", RDMESH_U56), high = rdmesh_program_argument(p, "high", RDMESH_U56);
    int right = says(p, "right", 1), wrong = says(p, "wrong", 2);
    struct rdmesh_spec test = {.op = RDMESH_NOP, .is_test = 1};
    int other = rdmesh_program_declare(p, "other", &test);
    CHECK(other > 0 && waste > 0 && rdmesh_program_on_request(p, 0) == 0);
    struct rdmesh_span into[] = {rdmesh_operand(other), rdmesh_bytes(waste, 0, 1), rdmesh_operand(right)};
    read_into(p, secret, into, 3);
    struct rdmesh_value values[] = {{.argument = (uint32_t)low}, {.argument = (uint32_t)high}};
    struct rdmesh_condition all[] = {{into[0], RDMESH_EQUAL, 1, &values[0]}, {into[2], RDMESH_EQUAL, 1, &values[1]}};
    struct rdmesh_outcome outcomes[] = {{(uint32_t)right, RDMESH_RUN}, {(uint32_t)wrong, RDMESH_CANCEL}};
    CHECK(rdmesh_program_when(p, all, 2, outcomes, 2, 0) == 0 && rdmesh_program_place(p, wrong) == 0 && rdmesh_program_rearm(p) == 0);
    return built(p, design);
}

static void fill_words(struct rdmesh_service *service) {
    uint64_t *secret = rdmesh_service_region(service, "secret", NULL);
    CHECK(secret);
    secret[0] = SECRET, secret[1] = SECRET + 1;
}

static void ask_words(struct client *client) {
    for (uint64_t i = 0; i < 4; i++) {
        uint64_t words[] = {SECRET + (i & 1), SECRET + 1 + (i >> 1)};
        CHECK(imm_of(client, 2, words, 7) == (i == 0 ? 1 : 2));
    }
}

// ---- words that the chain changes

static struct rdmesh_chain *make_words_changed(enum rdmesh_design design) {
    struct rdmesh_program *p = rdmesh_program_new("words");
    int words = rdmesh_program_memory(p, "words", RDMESH_SHARED, 32), tag = rdmesh_program_argument(p, "tag", RDMESH_U32);
    struct rdmesh_spec spec = {.op = RDMESH_SEND_IMM, .tag = (uint32_t)tag, .from = rdmesh_bytes(words, 0, 32)};
    int say = rdmesh_program_declare(p, "say", &spec);
    CHECK(say > 0 && rdmesh_program_on_request(p, 0) == 0);
    CHECK(rdmesh_program_word(p, RDMESH_ADD, rdmesh_bytes(words, 0, 8), 5, 0) > 0);
    CHECK(rdmesh_program_word(p, RDMESH_MIN, rdmesh_bytes(words, 8, 8), 50, 0) > 0);
    CHECK(rdmesh_program_word(p, RDMESH_MAX, rdmesh_bytes(words, 16, 8), 50, 0) > 0);
    CHECK(rdmesh_program_word(p, RDMESH_CAS, rdmesh_bytes(words, 24, 8), 7, 8) > 0);
    CHECK(rdmesh_program_place(p, say) == 0 && rdmesh_program_rearm(p) == 0);
    return built(p, design);
}

static void fill_changed(struct rdmesh_service *service) {
    uint64_t *words = rdmesh_service_region(service, "words", NULL);
    CHECK(words);
    words[0] = 100, words[1] = 60, words[2] = 40, words[3] = 7;
}

static void ask_changed(struct client *client) {
    for (uint32_t lap = 1; lap <= 10; lap++) {
        memcpy(client->message, &lap, 4);
        uint64_t words[4], expected[4] = {100 + 5 * lap, 50, 50, 8};
        CHECK(ask(client, 4) == sizeof words && client->imm == lap);
        memcpy(words, client->reply, sizeof words);
        CHECK(memcmp(words, expected, sizeof words) == 0);
    }
}

// ---- a loop: from word to word until one is zero

static struct rdmesh_chain *make_loop(enum rdmesh_design design) {
    struct rdmesh_program *p = rdmesh_program_new("follow");
    int nodes = rdmesh_program_memory(p, "nodes", RDMESH_TABLE, 16 * 8), waste = rdmesh_program_memory(p, "waste", RDMESH_SCRATCH, 8);
    int first = rdmesh_program_argument(p, "first", RDMESH_OFFSET);
    int reply = says(p, "reply", 3);
    int answer = rdmesh_program_branch(p, "answer");
    CHECK(answer > 0 && rdmesh_program_place(p, reply) == 0 && rdmesh_program_next_request(p) == 0 && rdmesh_program_end_branch(p) == 0);
    CHECK_ERROR(rdmesh_program_end_branch(p), "no branch has begun");
    CHECK(rdmesh_program_on_request(p, 1) == 0);
    struct rdmesh_span into[] = {rdmesh_field((int)RDMESH_THIS, 24, 8), rdmesh_operand(answer)};
    struct rdmesh_read node = {.label = "node", .memory = (uint32_t)nodes, .offset_argument = (uint32_t)first, .is_soft = 1, .into = into, .num_into = 2};
    CHECK(waste > 0 && rdmesh_program_read(p, &node) > 0);
    struct rdmesh_value zero = {.low = 0};
    struct rdmesh_condition is_last = {.operand = into[1], .num_values = 1, .values = &zero};
    struct rdmesh_outcome stop = {(uint32_t)answer, RDMESH_STOP_WITH};
    CHECK(rdmesh_program_when(p, &is_last, 1, &stop, 1, 0) == 0 && rdmesh_program_recycle(p) == 0);
    return built(p, design);
}

// Node n leads to node n + 1; the last one has a zero.
static void fill_loop(struct rdmesh_service *service) {
    uint64_t *nodes = rdmesh_service_region(service, "nodes", NULL);
    CHECK(nodes);
    for (uint64_t i = 0; i < 8; i++) nodes[2 * i] = 16 * (i + 1), nodes[2 * i + 1] = i < 7;
}

static void ask_loop(struct client *client) {
    for (uint64_t i = 0; i < 8; i++) {
        uint64_t offset = 16 * i;
        CHECK(imm_of(client, 1, &offset, 8) == 3);
    }
}

// ---- lists

static const char *const KEYS[] = {"one", "two", "three", "four", "five"};
enum { NUM_KEYS = 5 };

static struct rdmesh_list_shape list_shape(enum rdmesh_walk walk) {
    return (struct rdmesh_list_shape){.nodes = 16, .record_size = 128, .walk = walk, .hops = NUM_KEYS};
}

static struct rdmesh_chain *make_list(enum rdmesh_walk walk, enum rdmesh_design design) {
    struct rdmesh_list_shape shape = list_shape(walk);
    struct rdmesh_chain *chain = rdmesh_list_chain(&shape, design);
    CHECK(chain);
    return chain;
}

static struct rdmesh_chain *make_unrolled(enum rdmesh_design design) { return make_list(RDMESH_UNROLLED, design); }
static struct rdmesh_chain *make_break(enum rdmesh_design design) { return make_list(RDMESH_BREAK, design); }
static struct rdmesh_chain *make_list_loop(enum rdmesh_design design) { return make_list(RDMESH_LOOP, design); }

static void fill_list(struct rdmesh_service *service, enum rdmesh_walk walk) {
    struct rdmesh_list_shape shape = list_shape(walk);
    struct rdmesh_list *lists = rdmesh_list_open(&shape, service);
    CHECK(lists);
    uint64_t head = 0;
    for (int i = 0; i < NUM_KEYS; i++) CHECK(rdmesh_list_push(lists, &head, KEYS[i], strlen(KEYS[i]), KEYS[i], strlen(KEYS[i])) == 0);
    CHECK(head == 32 * NUM_KEYS);
    CHECK(rdmesh_list_unlink(lists, head - 32, head - 96) == 0);
    CHECK_ERROR(rdmesh_list_unlink(lists, head + 32, 0), "no such node");
    char large[256];
    memset(large, 0, sizeof large);
    CHECK_ERROR(rdmesh_list_push(lists, &head, "k", 1, large, sizeof large), "do not fit");
    rdmesh_list_close(lists);
}

static void fill_unrolled(struct rdmesh_service *service) { fill_list(service, RDMESH_UNROLLED); }
static void fill_break(struct rdmesh_service *service) { fill_list(service, RDMESH_BREAK); }
static void fill_list_loop(struct rdmesh_service *service) { fill_list(service, RDMESH_LOOP); }

static void ask_list(struct client *client) {
    struct rdmesh_list_client *walks = rdmesh_list_client_new();
    for (int i = 0; i <= NUM_KEYS; i++) {
        const char *key = i < NUM_KEYS ? KEYS[i] : "none";
        uint32_t tag;
        ask(client, rdmesh_list_request(walks, 32 * NUM_KEYS, key, strlen(key), (uintptr_t)client->reply, client->mr->rkey, client->message, MESSAGE, &tag));
        CHECK(client->imm == tag);
        struct rdmesh_answer answer;
        CHECK(rdmesh_list_reply(walks, tag, client->reply, client->length, &answer) == 0);
        // "three" was taken out of the list.
        if (i == NUM_KEYS || i == 2) CHECK(answer.kind == RDMESH_MISS);
        else CHECK(answer.kind == RDMESH_VALUE && answer.length == strlen(key) && memcmp(answer.value, key, answer.length) == 0);
        CHECK(rdmesh_list_reply(walks, tag, client->reply, client->length, &answer) == 0 && answer.kind == RDMESH_STALE);
    }
    rdmesh_list_client_free(walks);
}

// ---- locks

enum { OWNER = 7 };

static struct rdmesh_chain *make_lock(enum rdmesh_design design) { return rdmesh_lock_chain(4, OWNER, design); }
static void fill_lock(struct rdmesh_service *service) { CHECK(rdmesh_service_region(service, "locks", NULL)); }

static struct rdmesh_lock_answer lock_answer(struct client *client, int length) {
    ask(client, length);
    struct rdmesh_lock_answer answer;
    CHECK(rdmesh_lock_reply(OWNER, client->reply, client->length, &answer) == 0);
    return answer;
}

static void ask_lock(struct client *client) {
    uint64_t lease = 0;
    for (int turn = 0; turn < 3; turn++) {
        struct rdmesh_lock_answer answer = lock_answer(client, rdmesh_lock_acquire(2, 1, client->message, MESSAGE));
        CHECK(client->imm == 1 && answer.kind == RDMESH_ACQUIRED && (turn == 0 || answer.lease > lease));
        lease = answer.lease;
        answer = lock_answer(client, rdmesh_lock_acquire(2, 2, client->message, MESSAGE));
        CHECK(answer.kind == RDMESH_HELD && answer.holder == OWNER && answer.lease == lease);
        CHECK(lock_answer(client, rdmesh_lock_release(2, lease + 1, 2, client->message, MESSAGE)).kind == RDMESH_HELD);
        CHECK(lock_answer(client, rdmesh_lock_release(2, lease, 3, client->message, MESSAGE)).kind == RDMESH_RELEASED);
        CHECK(lock_answer(client, rdmesh_lock_release(2, lease, 3, client->message, MESSAGE)).kind == RDMESH_NOT_HELD);
    }
    CHECK_ERROR(rdmesh_lock_reply(OWNER, client->reply, 3, NULL), "no reply of a lock's");
}

// ---- counters

static struct rdmesh_chain *make_counter(enum rdmesh_design design) { return rdmesh_counter_chain(2, 10, design); }
static void fill_counter(struct rdmesh_service *service) { CHECK(rdmesh_service_region(service, "counters", NULL)); }

static void ask_counter(struct client *client) {
    const struct { int64_t change; uint32_t kind; uint64_t value; } steps[] = {
        {7, RDMESH_ADDED, 0}, {4, RDMESH_OUT_OF_BOUNDS, 7}, {3, RDMESH_ADDED, 7}, {-10, RDMESH_ADDED, 10}, {-1, RDMESH_OUT_OF_BOUNDS, 0}};
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        ask(client, rdmesh_counter_add(1, steps[i].change, (uint32_t)i, client->message, MESSAGE));
        struct rdmesh_counter_answer answer;
        CHECK(client->imm == i && rdmesh_counter_reply(client->reply, client->length, &answer) == 0);
        CHECK(answer.kind == steps[i].kind && answer.value == steps[i].value);
    }
}

static const struct test TESTS[] = {
    {"guess", make_guess, fill_secret, ask_guess},
    {"text", make_text, fill_secret, ask_guess},
    {"at_most", make_at_most, fill_secret, ask_at_most},
    {"less", make_less, fill_secret, ask_less},
    {"words", make_words, fill_words, ask_words},
    {"changed", make_words_changed, fill_changed, ask_changed},
    {"loop", make_loop, fill_loop, ask_loop},
    {"unrolled", make_unrolled, fill_unrolled, ask_list},
    {"break", make_break, fill_break, ask_list},
    {"list_loop", make_list_loop, fill_list_loop, ask_list},
    {"lock", make_lock, fill_lock, ask_lock},
    {"counter", make_counter, fill_counter, ask_counter},
};
enum { NUM_TESTS = sizeof TESTS / sizeof TESTS[0] };

// ---- The two programs: all services, one after the other, each in both designs.

static int is_wanted(int number, int count, char **names) {
    if (count == 0) return 1;
    for (int i = 0; i < count; i++) {
        if (number % 2 == 0 && strcmp(names[i], TESTS[number / 2].name) == 0) return 1;
    }
    return 0;
}

static void serve(int num_wanted, char **wanted) {
    struct ibv_context *context = open_device();
    struct ibv_pd *pd = ibv_alloc_pd(context);
    int listener = listen_at(PORT);
    puts("listening");
    int stream = accept(listener, NULL, NULL);
    for (int i = 0; i < 2 * NUM_TESTS; i++) {
        const struct test *test = &TESTS[i / 2];
        if (!is_wanted(i, num_wanted, wanted)) continue;
        struct rdmesh_chain *chain = test->make(i % 2 ? RDMESH_DESIGN_PORTABLE : RDMESH_DESIGN_LOCAL);
        CHECK(chain);
        struct rdmesh_service *service = rdmesh_chain_install(chain, pd, NULL);
        CHECK(service);
        test->fill(service);
        char done, count = 0;
        while (rdmesh_service_qp(service, (uint32_t)count)) count++;
        CHECK(write(stream, &count, 1) == 1);
        for (int n = 0; n < count; n++) join(stream, rdmesh_service_qp(service, (uint32_t)n), 0);
        if (read(stream, &done, 1) != 1) {
            struct rdmesh_fault fault;
            die("%s: the client has gone; %s", test->name, rdmesh_service_last_error(service, &fault) == 1 ? fault.text : "no fault");
        }
        if (test->fill == fill_lock) CHECK(rdmesh_lock_end(service, 2, OWNER, 9) == 0);
        struct rdmesh_stats stats;
        CHECK(rdmesh_service_stats(service, &stats) == 0 && stats.state == RDMESH_RUNNING && stats.steps > 0);
        rdmesh_service_close(service);
        rdmesh_chain_free(chain);
    }
    CHECK(ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
}

static void call(const char *address) {
    struct ibv_context *context = open_device();
    struct ibv_pd *pd = ibv_alloc_pd(context);
    char port[8];
    snprintf(port, sizeof port, "%d", PORT);
    int stream = connect_to(address, port);
    for (int i = 0; i < 2 * NUM_TESTS; i++) {
        struct client client = {.cq = ibv_create_cq(context, 16, NULL, NULL, 0), .message = aligned_alloc(4096, MESSAGE + REPLY)};
        client.reply = client.message + MESSAGE;
        struct ibv_qp_init_attr init = {.send_cq = client.cq, .recv_cq = client.cq, .qp_type = IBV_QPT_RC,
                                        .cap = {.max_send_wr = 4, .max_recv_wr = RECEIVES, .max_send_sge = 1, .max_recv_sge = 1}};
        client.mr = ibv_reg_mr(pd, client.message, MESSAGE + REPLY, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
        CHECK(client.mr && read(stream, &client.count, 1) == 1 && client.count <= MOST_QPS);
        for (int n = 0; n < client.count; n++) {
            client.qps[n] = ibv_create_qp(pd, &init);
            CHECK(client.qps[n]);
            join(stream, client.qps[n], IBV_ACCESS_REMOTE_WRITE);
        }
        TESTS[i / 2].ask(&client);
        printf("%s %s\n", TESTS[i / 2].name, i % 2 ? "portable" : "local");
        CHECK(write(stream, "d", 1) == 1);
        while (client.count-- > 0) CHECK(ibv_destroy_qp(client.qps[(int)client.count]) == 0);
        CHECK(ibv_dereg_mr(client.mr) == 0 && ibv_destroy_cq(client.cq) == 0);
        free(client.message);
    }
}

int main(int argc, char **argv) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    int is_server = argc < 2 || strcmp(argv[1], "-") == 0;
    if (is_server) serve(argc > 2 ? argc - 2 : 0, argv + 2);
    else call(argv[1]);
    return 0;
}
