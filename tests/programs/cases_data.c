// Does every operation move exactly the bytes that it should?
#include "cases.h"
#include "verbs.h"
#include <endian.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { GUARD = 64 };

static const size_t LENGTHS[] = {0, 1, 3, 7, 8, 63, 64, 255, 1000, 1024, 1025, 4095, 4096, 4097, 65535, 262144};
static const size_t OFFSETS[] = {GUARD, GUARD + 1, 4096 - 3, 8192};
enum { N_LENGTHS = sizeof LENGTHS / sizeof *LENGTHS, N_OFFSETS = sizeof OFFSETS / sizeof *OFFSETS };

static bool is_write(enum ibv_wr_opcode op) {
    return op == IBV_WR_RDMA_WRITE || op == IBV_WR_RDMA_WRITE_WITH_IMM;
}

static bool has_imm(enum ibv_wr_opcode op) {
    return op == IBV_WR_SEND_WITH_IMM || op == IBV_WR_RDMA_WRITE_WITH_IMM;
}

static void check_received(struct side *to, enum ibv_wr_opcode op, size_t len, uint32_t imm) {
    struct ibv_wc wc = expect_wc(to->cq, IBV_WC_SUCCESS);
    CHECK(wc.opcode == (is_write(op) ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV), "opcode %d", wc.opcode);
    CHECK(wc.wr_id == 77);
    CHECK(wc.qp_num == to->qp->qp_num);
    CHECK(wc.byte_len == len, "byte_len %u, sent %zu", wc.byte_len, len);
    CHECK(!!(wc.wc_flags & IBV_WC_WITH_IMM) == has_imm(op));
    if (has_imm(op)) CHECK(wc.imm_data == htobe32(imm));
}

// One transfer; the target must hold exactly the source's bytes, and nothing around them may change.
static void transfer(struct side *from, struct side *to, enum ibv_wr_opcode op, size_t offset, size_t len) {
    static uint32_t last_pattern;
    uint32_t pattern = ++last_pattern;
    struct side *source = op == IBV_WR_RDMA_READ ? to : from, *target = op == IBV_WR_RDMA_READ ? from : to;
    memset(target->buffer + offset - GUARD, 0, len + 2 * GUARD);
    fill(source->buffer + offset, len, pattern);
    bool receives = op != IBV_WR_RDMA_READ && op != IBV_WR_RDMA_WRITE;
    if (receives) {
        struct ibv_sge sge = {.addr = (uintptr_t)to->buffer + offset, .length = (uint32_t)len, .lkey = to->mr->lkey};
        post_recv(to, 77, &sge, is_write(op) ? 0 : 1);
    }
    struct request r;
    request(&r, from, op, offset, len)->wr.imm_data = htobe32(pattern);
    post_send(from, &r.wr);
    struct ibv_wc wc = expect_wc(from->cq, IBV_WC_SUCCESS);
    CHECK(wc.wr_id == 1 && wc.qp_num == from->qp->qp_num);
    if (receives) check_received(to, op, len, pattern);
    if (!receives && from->options.type == IBV_QPT_UC) {
        // An unreliable WRITE completes when it has left; a message behind it tells that it has arrived.
        transfer(from, to, IBV_WR_SEND_WITH_IMM, 512 * 1024, 8);
    }
    CHECK(matches(target->buffer + offset, len, pattern), "opcode %d, %zu bytes at %zu", op, len, offset);
    CHECK(all_zero(target->buffer + offset - GUARD, GUARD) && all_zero(target->buffer + offset + len, GUARD),
          "bytes around the target changed: opcode %d, %zu bytes at %zu", op, len, offset);
}

static int opcodes(enum ibv_qp_type type, const enum ibv_wr_opcode *ops, size_t count) {
    struct side a, b;
    struct options o = default_options(type);
    open_pair(&a, &b, &o);
    for (size_t op = 0; op < count; op++)
        for (size_t l = 0; l < N_LENGTHS; l++)
            for (size_t at = 0; at < N_OFFSETS; at++) {
                transfer(&a, &b, ops[op], OFFSETS[at], LENGTHS[l]);
                transfer(&b, &a, ops[op], OFFSETS[at], LENGTHS[l]);
            }
    close_pair(&a, &b);
    return 0;
}

int case_rc_opcodes(void) {
    const enum ibv_wr_opcode ops[] = {IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM,
                                      IBV_WR_RDMA_READ};
    return opcodes(IBV_QPT_RC, ops, 5);
}

int case_uc_opcodes(void) {
    const enum ibv_wr_opcode ops[] = {IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM};
    return opcodes(IBV_QPT_UC, ops, 4);
}

int case_ud_messages(void) {
    struct side a, b;
    struct options o = default_options(IBV_QPT_UD);
    open_pair(&a, &b, &o);
    for (size_t len = 0; len <= 1024; len = len < 4 ? len + 1 : len * 2) {
        memset(b.buffer, 0, 4096);
        fill(a.buffer, len, len + 1);
        struct ibv_sge sge = {.addr = (uintptr_t)b.buffer, .length = 40 + (uint32_t)len, .lkey = b.mr->lkey};
        post_recv(&b, 5, &sge, 1);
        struct request r;
        request(&r, &a, IBV_WR_SEND_WITH_IMM, 0, len)->wr.imm_data = htobe32(9);
        post_send(&a, &r.wr);
        expect_wc(a.cq, IBV_WC_SUCCESS);
        struct ibv_wc wc = expect_wc(b.cq, IBV_WC_SUCCESS);
        CHECK(wc.opcode == IBV_WC_RECV && wc.wr_id == 5);
        CHECK(wc.byte_len == len + 40, "byte_len %u", wc.byte_len);
        CHECK(wc.wc_flags & IBV_WC_GRH);
        CHECK(wc.wc_flags & IBV_WC_WITH_IMM && wc.imm_data == htobe32(9));
        CHECK(wc.src_qp == a.qp->qp_num, "src_qp %u", wc.src_qp);
        CHECK(matches(b.buffer + 40, len, len + 1));
        CHECK(all_zero(b.buffer + 40 + len, 64));
        // An IPv4 header lies in the last 20 bytes of the GRH's space: source address at 12, destination at 16.
        CHECK(memcmp(b.buffer + 20 + 12, a.gid.raw + 12, 4) == 0, "source address in the GRH");
        CHECK(memcmp(b.buffer + 20 + 16, b.gid.raw + 12, 4) == 0, "destination address in the GRH");
    }
    close_pair(&a, &b);
    return 0;
}

int case_scatter_gather(void) {
    struct side a, b;
    struct options o = default_options(IBV_QPT_RC);
    open_pair(&a, &b, &o);
    const size_t from[] = {10, 5000, 9001, 70000}, pieces[] = {1, 4099, 0, 33};
    const size_t to[] = {3, 100000, 200001}, room[] = {2, 4000, 1000};
    struct ibv_sge gather[4], scatter[3];
    char whole[8192];
    size_t total = 0;
    for (int i = 0; i < 4; i++) {
        fill(a.buffer + from[i], pieces[i], 100 + (uint64_t)i);
        memcpy(whole + total, a.buffer + from[i], pieces[i]);
        total += pieces[i];
        gather[i] = (struct ibv_sge){(uintptr_t)a.buffer + from[i], (uint32_t)pieces[i], a.mr->lkey};
    }
    for (int i = 0; i < 3; i++) scatter[i] = (struct ibv_sge){(uintptr_t)b.buffer + to[i], (uint32_t)room[i], b.mr->lkey};
    post_recv(&b, 1, scatter, 3);
    struct request r;
    request(&r, &a, IBV_WR_SEND, 0, 0);
    r.wr.sg_list = gather;
    r.wr.num_sge = 4;
    post_send(&a, &r.wr);
    expect_wc(a.cq, IBV_WC_SUCCESS);
    CHECK(expect_wc(b.cq, IBV_WC_SUCCESS).byte_len == total);
    size_t done = 0;
    for (int i = 0; i < 3; i++) {
        size_t n = total - done < room[i] ? total - done : room[i];
        CHECK(memcmp(b.buffer + to[i], whole + done, n) == 0, "piece %d", i);
        CHECK(all_zero(b.buffer + to[i] + n, 32), "behind piece %d", i);
        done += n;
    }
    CHECK(done == total);
    // READ scatters what it fetched over its own elements.
    fill(b.buffer, total, 5);
    memset(a.buffer, 0, 1 << 17);
    r.wr.opcode = IBV_WR_RDMA_READ;
    post_send(&a, &r.wr);
    expect_wc(a.cq, IBV_WC_SUCCESS);
    done = 0;
    for (int i = 0; i < 4; done += pieces[i++]) CHECK(memcmp(a.buffer + from[i], b.buffer + done, pieces[i]) == 0);
    close_pair(&a, &b);
    return 0;
}

int case_inline_data(void) {
    struct side a, b;
    struct options o = default_options(IBV_QPT_RC);
    open_pair(&a, &b, &o);
    for (size_t len = 0; len <= 64; len++) {
        char unregistered[64];
        fill(unregistered, len, len);
        struct request r;
        request(&r, &a, IBV_WR_RDMA_WRITE, 0, len)->wr.send_flags |= IBV_SEND_INLINE;
        r.sge = (struct ibv_sge){.addr = (uintptr_t)unregistered, .length = (uint32_t)len, .lkey = 0};
        post_send(&a, &r.wr);
        memset(unregistered, 0xee, sizeof unregistered); // ours again as soon as the post returns
        expect_wc(a.cq, IBV_WC_SUCCESS);
        CHECK(matches(b.buffer, len, len), "%zu bytes", len);
    }
    close_pair(&a, &b);
    return 0;
}

int case_unsignaled(void) {
    struct side a, b;
    struct options o = default_options(IBV_QPT_RC);
    open_pair(&a, &b, &o);
    for (uint64_t round = 0; round < 200; round++) {
        for (uint64_t i = 0; i < 32; i++) {
            struct request r;
            request(&r, &a, IBV_WR_RDMA_WRITE, i * 8, 8)->wr.send_flags = i == 31 ? IBV_SEND_SIGNALED : 0;
            r.wr.wr_id = round * 32 + i;
            memcpy(a.buffer + i * 8, &r.wr.wr_id, 8);
            post_send(&a, &r.wr);
        }
        CHECK(expect_wc(a.cq, IBV_WC_SUCCESS).wr_id == round * 32 + 31);
        expect_nothing(a.cq);
        CHECK(memcmp(a.buffer, b.buffer, 32 * 8) == 0);
    }
    close_pair(&a, &b);
    return 0;
}

int case_fence(void) {
    struct side a, b;
    struct options o = default_options(IBV_QPT_RC);
    open_pair(&a, &b, &o);
    for (uint64_t round = 1; round <= 500; round++) {
        // What the READ brings is what the fenced WRITE behind it sends.
        memcpy(b.buffer, &round, 8);
        struct request read, write;
        request(&read, &a, IBV_WR_RDMA_READ, 0, 8)->wr.send_flags = 0;
        request(&write, &a, IBV_WR_RDMA_WRITE, 0, 8)->wr.send_flags |= IBV_SEND_FENCE;
        write.wr.wr.rdma.remote_addr += 4096;
        read.wr.next = &write.wr;
        post_send(&a, &read.wr);
        expect_wc(a.cq, IBV_WC_SUCCESS);
        CHECK(memcmp(b.buffer + 4096, &round, 8) == 0, "round %llu", (unsigned long long)round);
    }
    close_pair(&a, &b);
    return 0;
}

static struct request *atomic(struct request *r, struct side *s, enum ibv_wr_opcode op, uint64_t compare_add, uint64_t swap) {
    request(r, s, op, 0, 8);
    r->wr.wr.atomic.remote_addr = s->remote_addr;
    r->wr.wr.atomic.rkey = s->remote_rkey;
    r->wr.wr.atomic.compare_add = compare_add;
    r->wr.wr.atomic.swap = swap;
    return r;
}

static uint64_t do_atomic(struct side *s, enum ibv_wr_opcode op, uint64_t compare_add, uint64_t swap) {
    struct request r;
    post_send(s, &atomic(&r, s, op, compare_add, swap)->wr);
    expect_wc(s->cq, IBV_WC_SUCCESS);
    uint64_t old;
    memcpy(&old, s->buffer, 8);
    return old;
}

int case_atomics(void) {
    struct side a, b;
    struct options o = default_options(IBV_QPT_RC);
    open_pair(&a, &b, &o);
    volatile uint64_t *target = (uint64_t *)b.buffer;
    *target = 40;
    CHECK(do_atomic(&a, IBV_WR_ATOMIC_FETCH_AND_ADD, 2, 0) == 40 && *target == 42);
    CHECK(do_atomic(&a, IBV_WR_ATOMIC_FETCH_AND_ADD, UINT64_MAX, 0) == 42 && *target == 41);
    CHECK(do_atomic(&a, IBV_WR_ATOMIC_CMP_AND_SWP, 41, 7) == 41 && *target == 7);
    CHECK(do_atomic(&a, IBV_WR_ATOMIC_CMP_AND_SWP, 41, 8) == 7 && *target == 7);
    // Pipelined, each with its own place for the old value: they execute in order.
    *target = 0;
    for (uint64_t i = 0; i < 64; i++) {
        struct request r;
        atomic(&r, &a, IBV_WR_ATOMIC_FETCH_AND_ADD, 1, 0)->sge.addr += 8 * i;
        post_send(&a, &r.wr);
    }
    for (int i = 0; i < 64; i++) expect_wc(a.cq, IBV_WC_SUCCESS);
    for (uint64_t i = 0; i < 64; i++) CHECK(((uint64_t *)a.buffer)[i] == i);
    close_pair(&a, &b);
    return 0;
}

enum { ROUNDS = 2000 };

static void *add_many(void *argument) {
    for (int i = 0; i < ROUNDS; i++) do_atomic(argument, IBV_WR_ATOMIC_FETCH_AND_ADD, 1, 0);
    return NULL;
}

int case_atomic_contention(void) {
    struct side a[2], b[2];
    struct options o = default_options(IBV_QPT_RC);
    for (int i = 0; i < 2; i++) open_pair(&a[i], &b[i], &o);
    // Both add to b[0]'s word; b[1] registers the same memory in a context of its own.
    struct ibv_mr *again = ibv_reg_mr(b[1].pd, b[0].buffer, 4096, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_ATOMIC);
    CHECK(again);
    a[1].remote_addr = (uintptr_t)b[0].buffer;
    a[1].remote_rkey = again->rkey;
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) pthread_create(&threads[i], NULL, add_many, &a[i]);
    // The program's own processor adds too (ATOMIC_GLOB is not promised, so to another word).
    for (int i = 0; i < ROUNDS; i++) __atomic_fetch_add((uint64_t *)b[0].buffer + 1, 1, __ATOMIC_RELAXED);
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    CHECK(((uint64_t *)b[0].buffer)[0] == 2 * ROUNDS, "sum %llu", (unsigned long long)((uint64_t *)b[0].buffer)[0]);
    CHECK(((uint64_t *)b[0].buffer)[1] == ROUNDS);
    CHECK(ibv_dereg_mr(again) == 0);
    for (int i = 0; i < 2; i++) close_pair(&a[i], &b[i]);
    return 0;
}

static void bind_window(struct side *b, struct ibv_mw *mw, uint32_t rkey) {
    struct ibv_send_wr wr = {.wr_id = 3, .opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED};
    wr.bind_mw.mw = mw;
    wr.bind_mw.rkey = rkey;
    wr.bind_mw.bind_info = (struct ibv_mw_bind_info){.mr = b->mr, .addr = (uintptr_t)b->buffer, .length = 4096,
                                                     .mw_access_flags = IBV_ACCESS_REMOTE_WRITE};
    post_send(b, &wr);
    expect_wc(b->cq, IBV_WC_SUCCESS);
}

int case_send_with_invalidate(void) {
    struct side a, b;
    struct options o = default_options(IBV_QPT_RC);
    open_pair(&a, &b, &o);
    struct ibv_mw *mw = ibv_alloc_mw(b.pd, IBV_MW_TYPE_2);
    CHECK(mw);
    uint32_t rkey = ibv_inc_rkey(mw->rkey);
    bind_window(&b, mw, rkey);
    struct request r;
    fill(a.buffer, 16, 4);
    request(&r, &a, IBV_WR_RDMA_WRITE, 0, 16)->wr.wr.rdma.rkey = rkey;
    post_send(&a, &r.wr);
    expect_wc(a.cq, IBV_WC_SUCCESS);
    CHECK(matches(b.buffer, 16, 4));
    post_recv(&b, 1, NULL, 0);
    request(&r, &a, IBV_WR_SEND_WITH_INV, 0, 0)->wr.invalidate_rkey = rkey;
    post_send(&a, &r.wr);
    expect_wc(a.cq, IBV_WC_SUCCESS);
    struct ibv_wc wc = expect_wc(b.cq, IBV_WC_SUCCESS);
    CHECK(wc.wc_flags & IBV_WC_WITH_INV && wc.invalidated_rkey == rkey);
    request(&r, &a, IBV_WR_RDMA_WRITE, 0, 16)->wr.wr.rdma.rkey = rkey;
    post_send(&a, &r.wr);
    expect_wc(a.cq, IBV_WC_REM_ACCESS_ERR);
    CHECK(ibv_dealloc_mw(mw) == 0);
    close_pair(&a, &b);
    return 0;
}

int case_shared_receive_queue(void) {
    struct side a, b;
    struct options o = default_options(IBV_QPT_RC);
    side_open(&a, &o);
    o.srq = true;
    side_open(&b, &o);
    connect_sides(&a, &b);
    for (uint64_t round = 0; round < 300; round++) {
        struct ibv_sge sge = {(uintptr_t)b.buffer + round * 64, 64, b.mr->lkey};
        post_recv(&b, round, &sge, 1);
        fill(a.buffer, 64, round);
        struct request r;
        post_send(&a, &request(&r, &a, IBV_WR_SEND, 0, 64)->wr);
        expect_wc(a.cq, IBV_WC_SUCCESS);
        CHECK(expect_wc(b.cq, IBV_WC_SUCCESS).wr_id == round);
        CHECK(matches(b.buffer + round * 64, 64, round));
    }
    close_pair(&a, &b);
    return 0;
}

// Random WRITEs and READs against a model of both buffers.
int case_random_soak(void) {
    enum { SPAN = 1 << 16, OPERATIONS = 20000 };
    struct side a, b;
    struct options o = default_options(IBV_QPT_RC);
    open_pair(&a, &b, &o);
    char *model_a = malloc(SPAN), *model_b = malloc(SPAN);
    fill(a.buffer, SPAN, 1);
    fill(b.buffer, SPAN, 2);
    memcpy(model_a, a.buffer, SPAN);
    memcpy(model_b, b.buffer, SPAN);
    unsigned seed = 12345;
    for (int i = 0; i < OPERATIONS; i++) {
        size_t len = (size_t)rand_r(&seed) % (i % 7 ? 200 : 9000);
        size_t here = (size_t)rand_r(&seed) % (SPAN - len), there = (size_t)rand_r(&seed) % (SPAN - len);
        bool write = rand_r(&seed) & 1;
        struct request r;
        request(&r, &a, write ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ, here, len);
        r.wr.wr.rdma.remote_addr = a.remote_addr + there;
        post_send(&a, &r.wr);
        expect_wc(a.cq, IBV_WC_SUCCESS);
        if (write) memcpy(model_b + there, model_a + here, len);
        else memcpy(model_a + here, model_b + there, len);
        if (i % 500 == 0) CHECK(!memcmp(a.buffer, model_a, SPAN) && !memcmp(b.buffer, model_b, SPAN), "after %d", i);
    }
    CHECK(!memcmp(a.buffer, model_a, SPAN) && !memcmp(b.buffer, model_b, SPAN));
    free(model_a);
    free(model_b);
    close_pair(&a, &b);
    return 0;
}
