// Managed queues by hand: a program that changes itself, its ends, and wrong uses.
#include "check.h"
#include <fcntl.h>
#include <sys/stat.h>

enum { SLOTS = 8, ACCESS = IBV_ACCESS_LOCAL_WRITE, GROUP = 7 };

static struct ibv_context *context;
static struct ibv_pd *pd;

static struct ibv_qp *make_qp(struct ibv_cq *cq, int all_signaled) {
    struct ibv_qp_init_attr init = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .sq_sig_all = all_signaled,
                                    .cap = {.max_send_wr = SLOTS - 1, .max_recv_wr = 1, .max_send_sge = 2, .max_recv_sge = 1}};
    struct ibv_qp *qp = ibv_create_qp(pd, &init);
    CHECK(qp);
    return qp;
}

static void loop_back(struct ibv_qp *qp) {
    // What is written to it is read from it.
    char name[] = "/tmp/rdmesh-fifo-XXXXXX";
    CHECK(mkdtemp(name) && chdir(name) == 0 && mkfifo("fifo", 0600) == 0);
    int fifo = open("fifo", O_RDWR);
    join(fifo, qp, ACCESS);
    close(fifo);
    CHECK(unlink("fifo") == 0 && chdir("/") == 0 && rmdir(name) == 0);
}

// A COMPARE_SWAP makes an ADD of the NOP behind it, if the operand is the one that it asks for.
static void condition(uint64_t operand, uint64_t asked, uint64_t expected) {
    struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);
    struct ibv_qp *qp = make_qp(cq, 0);
    struct rdmesh_queue *queue = rdmesh_queue_manage(qp, &(struct rdmesh_manage){.group = GROUP, .sends = 1});
    CHECK(queue);
    struct rdmesh_ring ring;
    CHECK(rdmesh_queue_register(queue, RDMESH_SEND, NULL, ACCESS, &ring) == 0);
    CHECK(ring.slots == SLOTS && ring.stride == 256);
    uint64_t *counter = aligned_alloc(4096, 4096);
    *counter = 40;
    struct ibv_mr *mr = ibv_reg_mr(pd, counter, 4096, ACCESS | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC);
    CHECK(mr);
    uint64_t control = 2 * ring.stride + RDMESH_AT_CONTROL;
    counter[1] = rdmesh_control(RDMESH_NOP, 0, operand);
    struct rdmesh_element word = {.address = (uintptr_t)&counter[1], .length = 8, .lkey = mr->lkey};
    struct rdmesh_request load = {.op = RDMESH_WRITE, .flags = RDMESH_LOCAL, .remote = control, .rkey = ring.key,
                                  .elements = &word, .num_elements = 1};
    struct rdmesh_request test = {.op = RDMESH_CAS, .flags = RDMESH_LOCAL, .remote = control, .rkey = ring.key,
                                  .compare = rdmesh_control(RDMESH_NOP, 0, asked), .swap = rdmesh_control(RDMESH_ADD, 0, 0)};
    struct rdmesh_request add = {.id = 5, .op = RDMESH_ADD, .flags = RDMESH_SIGNALED | RDMESH_LOCAL,
                                 .remote = (uintptr_t)counter, .rkey = mr->rkey, .compare = 2};
    CHECK(rdmesh_queue_emit(queue, 0, &load) == 0 && rdmesh_queue_emit(queue, 1, &test) == 0 && rdmesh_queue_emit(queue, 2, &add) == 0);
    loop_back(qp);
    CHECK(rdmesh_queue_enable(queue, RDMESH_SEND, 3) == 0);
    struct ibv_wc wc = poll_one(cq);
    CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == 5);
    CHECK(*(volatile uint64_t *)counter == expected);
    struct rdmesh_stats stats;
    CHECK(rdmesh_group_list(context, 0, &stats, 1) == 1 && stats.group == GROUP && stats.state == RDMESH_RUNNING && stats.queue_pairs == 1);
    rdmesh_queue_free(queue);
    ibv_destroy_qp(qp);
    ibv_dereg_mr(mr);
    ibv_destroy_cq(cq);
}

// A request with a wrong key ends the group, and is told of.
static void fault(void) {
    struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);
    struct ibv_qp *qp = make_qp(cq, 0);
    struct rdmesh_queue *queue = rdmesh_queue_manage(qp, &(struct rdmesh_manage){.group = GROUP, .sends = 1, .send_cycle = 3});
    struct rdmesh_ring ring;
    CHECK(queue && rdmesh_queue_register(queue, RDMESH_SEND, NULL, ACCESS, &ring) == 0);
    struct rdmesh_request wrong = {.op = RDMESH_ADD, .flags = RDMESH_LOCAL, .remote = 64, .rkey = ring.key ^ 1};
    CHECK(rdmesh_queue_emit(queue, 0, &(struct rdmesh_request){.op = RDMESH_NOP}) == 0);
    CHECK(rdmesh_queue_emit(queue, 1, &wrong) == 0);
    struct rdmesh_fault fault;
    CHECK(rdmesh_group_last_error(context, GROUP, &fault) == 0);
    loop_back(qp);
    CHECK(rdmesh_group_stop(context, GROUP) == 0 && rdmesh_queue_enable(queue, RDMESH_SEND, 2) == 0);
    CHECK(rdmesh_group_last_error(context, GROUP, &fault) == 0);
    CHECK(rdmesh_group_resume(context, GROUP) == 0);
    CHECK(poll_one(cq).status == IBV_WC_LOC_PROT_ERR);
    CHECK(rdmesh_group_last_error(context, GROUP, &fault) == 1);
    CHECK(fault.queue_pair == qp->handle && fault.side == RDMESH_SEND && fault.index == 1 && fault.status == IBV_WC_LOC_PROT_ERR);
    CHECK(fault.key == (ring.key ^ 1) && fault.address == 64 && !fault.label[0]);
    CHECK(strstr(fault.text, "request 1 ") && strstr(fault.text, "local protection error"));
    rdmesh_queue_free(queue);
    ibv_destroy_qp(qp);
    ibv_destroy_cq(cq);
}

// What a sealed queue's ring says besides its holes is not believed.
static void seal(void) {
    struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);
    struct ibv_qp *qp = make_qp(cq, 0);
    struct rdmesh_queue *queue = rdmesh_queue_manage(qp, &(struct rdmesh_manage){.group = GROUP, .sends = 1, .send_cycle = 2});
    struct rdmesh_request nop = {.id = 1, .op = RDMESH_NOP, .flags = RDMESH_SIGNALED};
    CHECK(queue && rdmesh_queue_emit(queue, 0, &nop) == 0 && rdmesh_queue_emit(queue, 1, &nop) == 0);
    struct rdmesh_hole hole = {.slot = 1, .at = 0, .length = 8};
    struct rdmesh_allowed allowed = {.slot = 1, .ops = UINT64_C(1) << RDMESH_NOP};
    CHECK_ERROR(rdmesh_queue_seal(queue, RDMESH_SEND, &(struct rdmesh_hole){.slot = 2}, 1, NULL, 0), "slot 2 has no bytes");
    CHECK_ERROR(rdmesh_queue_seal(queue, RDMESH_RECEIVE, NULL, 0, NULL, 0), "not managed");
    CHECK(rdmesh_queue_seal(queue, RDMESH_SEND, &hole, 1, &allowed, 1) == 0);
    struct rdmesh_request other = {.id = 9, .op = RDMESH_ADD, .flags = RDMESH_SIGNALED | RDMESH_LOCAL};
    CHECK(rdmesh_queue_emit(queue, 0, &other) == 0 && rdmesh_queue_emit(queue, 1, &other) == 0);
    loop_back(qp);
    CHECK(rdmesh_queue_enable(queue, RDMESH_SEND, 2) == 0);
    struct ibv_wc first = poll_one(cq), second = poll_one(cq);
    CHECK(first.status == IBV_WC_SUCCESS && first.wr_id == 1 && second.status == IBV_WC_SUCCESS && second.wr_id == 9);
    CHECK_ERROR(rdmesh_queue_seal(queue, RDMESH_SEND, NULL, 0, NULL, 0), "nothing may be enabled yet");
    CHECK(rdmesh_group_kill(context, GROUP) == 0);
    struct rdmesh_stats stats;
    CHECK(rdmesh_group_list(context, GROUP, &stats, 1) == 1 && stats.state == RDMESH_ENDED && !stats.has_fault);
    rdmesh_queue_free(queue);
    ibv_destroy_qp(qp);
    ibv_destroy_cq(cq);
}

static void wrong_uses(void) {
    struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);
    struct ibv_qp *late = make_qp(cq, 0), *noisy = make_qp(cq, 1), *fresh = make_qp(cq, 0);
    loop_back(late);
    struct rdmesh_manage how = {.group = GROUP, .sends = 1};
    CHECK_ERROR(rdmesh_queue_manage(late, &how), "before RTS");
    CHECK_ERROR(rdmesh_queue_manage(noisy, &how), "sq_sig_all 0");
    CHECK_ERROR(rdmesh_queue_manage(NULL, &how), "the queue pair is NULL");
    CHECK_ERROR(rdmesh_queue_manage(fresh, NULL), "how is NULL");
    CHECK_ERROR(rdmesh_queue_manage(fresh, &(struct rdmesh_manage){.group = GROUP}), "cannot be managed");
    CHECK_ERROR(rdmesh_group_kill(context, 99), "group 99");
    struct rdmesh_queue *queue = rdmesh_queue_manage(fresh, &how);
    CHECK(queue);
    struct rdmesh_element many[3] = {{0}};
    CHECK_ERROR(rdmesh_queue_emit(queue, SLOTS, &(struct rdmesh_request){.op = RDMESH_NOP}), "slot 8 is none of the 8");
    CHECK_ERROR(rdmesh_queue_emit(queue, UINT32_MAX, &(struct rdmesh_request){.op = RDMESH_NOP}), "none of the 8");
    CHECK_ERROR(rdmesh_queue_emit(queue, 0, &(struct rdmesh_request){.op = 0x20}), "no operation");
    CHECK_ERROR(rdmesh_queue_emit(queue, 0, &(struct rdmesh_request){.op = RDMESH_NOP, .flags = 1 << 30}), "no flags");
    CHECK_ERROR(rdmesh_queue_emit(queue, 0, &(struct rdmesh_request){.op = RDMESH_NOP, .operand = UINT64_C(1) << 56}), "56 bits");
    CHECK_ERROR(rdmesh_queue_emit(queue, 0, &(struct rdmesh_request){.op = RDMESH_WAIT}), "the cq of a WAIT is NULL");
    CHECK_ERROR(rdmesh_queue_emit(queue, 0, &(struct rdmesh_request){.op = RDMESH_ENABLE}), "the qp of an ENABLE is NULL");
    CHECK_ERROR(rdmesh_queue_emit(queue, 0, &(struct rdmesh_request){.op = RDMESH_SEND_MESSAGE, .num_elements = 1}), "list of elements is NULL");
    CHECK_ERROR(rdmesh_queue_emit(queue, 0, &(struct rdmesh_request){.op = RDMESH_READ, .elements = many, .num_elements = 33}), "at most 32");
    CHECK_ERROR(rdmesh_queue_emit_receive(queue, 0, 0, NULL, 0), "not managed");
    CHECK_ERROR(rdmesh_queue_register(queue, (enum rdmesh_side)2, NULL, ACCESS, NULL), "no side");
    CHECK_ERROR(rdmesh_queue_register(queue, RDMESH_SEND, NULL, 1 << 20, NULL), "registering a ring");
    CHECK_ERROR(rdmesh_chain_assemble("queue chain cq=sent\n"), "line 1");
    CHECK_ERROR(rdmesh_chain_assemble("chain x\nqueue q\n  a: NOP\n"), "`a`");
    CHECK_ERROR(rdmesh_chain_assemble(NULL), "the text is NULL");
    CHECK_ERROR(rdmesh_chain_install(NULL, pd, NULL), "the chain is NULL");
    rdmesh_queue_free(queue);
    struct ibv_qp *all[] = {late, noisy, fresh};
    for (int i = 0; i < 3; i++) ibv_destroy_qp(all[i]);
    ibv_destroy_cq(cq);
}

int main(void) {
    context = open_device();
    pd = ibv_alloc_pd(context);
    condition(9, 9, 42);
    condition(9, 8, 40);
    condition((UINT64_C(1) << 56) - 1, (UINT64_C(1) << 56) - 1, 42);
    condition((UINT64_C(1) << 56) - 1, (UINT64_C(1) << 56) - 2, 40);
    fault();
    seal();
    wrong_uses();
    ibv_dealloc_pd(pd);
    ibv_close_device(context);
    puts("all hold");
    return 0;
}
