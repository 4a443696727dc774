/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The first chain of the tutorial: it answers whether a number is the one that lies in memory.
 *
 *     rdmesh run --name a --net blue --ip 10.7.0.2 -- ./guess
 *     rdmesh run --name b --net blue --ip 10.7.0.3 -- ./guess 10.7.0.2 41 42
 */
#include "connect.h"
#include <rdmesh_chain.h>

enum { PORT = 18642, SECRET = 42, RIGHT = 1, WRONG = 2 };

static struct rdmesh_chain *build(void) {
    struct rdmesh_program *p = rdmesh_program_new("guess");
    int secret = rdmesh_program_memory(p, "secret", RDMESH_TABLE, 8);
    int guess = rdmesh_program_argument(p, "guess", RDMESH_U56);
    struct rdmesh_spec say_right = {.op = RDMESH_SEND_IMM, .imm = RIGHT}, say_wrong = {.op = RDMESH_SEND_IMM, .imm = WRONG};
    int right = rdmesh_program_declare(p, "right", &say_right), wrong = rdmesh_program_declare(p, "wrong", &say_wrong);

    rdmesh_program_on_request(p, 0);
    struct rdmesh_span operand = rdmesh_operand(right);
    struct rdmesh_read read = {.memory = (uint32_t)secret, .into = &operand, .num_into = 1};
    rdmesh_program_read(p, &read);
    struct rdmesh_value value = {.argument = (uint32_t)guess};
    struct rdmesh_condition is_guess = {.operand = operand, .comparison = RDMESH_EQUAL, .values = &value, .num_values = 1};
    struct rdmesh_outcome outcomes[] = {{(uint32_t)right, RDMESH_RUN}, {(uint32_t)wrong, RDMESH_OTHERWISE}};
    rdmesh_program_when(p, &is_guess, 1, outcomes, 2, 0);
    rdmesh_program_rearm(p);

    struct rdmesh_chain *chain = rdmesh_program_build(p, RDMESH_DESIGN_LOCAL);
    if (!chain) die("%s", rdmesh_chain_error());
    rdmesh_program_free(p);
    return chain;
}

static void serve(struct ibv_pd *pd) {
    struct rdmesh_chain *chain = build();
    char listing[4096];
    rdmesh_chain_listing(chain, listing, sizeof listing);
    fputs(listing, stdout);
    struct rdmesh_service *service = rdmesh_chain_install(chain, pd, NULL);
    if (!service) die("%s", rdmesh_chain_error());
    *(uint64_t *)rdmesh_service_region(service, "secret", NULL) = SECRET;
    int listener = listen_at(PORT);
    puts("listening");
    int stream = accept(listener, NULL, NULL);
    join(stream, rdmesh_service_qp(service, 0), 0);
    /* From here on this program only waits for the client to go. */
    char end;
    while (read(stream, &end, 1) > 0) {}
    rdmesh_service_close(service);
    rdmesh_chain_free(chain);
}

static void guess(struct ibv_pd *pd, const char *server, int count, char **guesses) {
    struct ibv_cq *cq = ibv_create_cq(pd->context, 8, NULL, NULL, 0);
    struct ibv_qp_init_attr init = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
                                    .cap = {.max_send_wr = 2, .max_recv_wr = 2, .max_send_sge = 1, .max_inline_data = 8}};
    struct ibv_qp *qp = ibv_create_qp(pd, &init);
    char port[8];
    snprintf(port, sizeof port, "%d", PORT);
    int stream = connect_to(server, port);
    join(stream, qp, 0);
    for (int i = 0; i < count; i++) {
        uint64_t number = strtoull(guesses[i], NULL, 0);
        struct ibv_sge sge = {.addr = (uintptr_t)&number, .length = 7};
        struct ibv_recv_wr receive = {.num_sge = 0}, *bad_receive;
        struct ibv_send_wr send = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_INLINE}, *bad_send;
        if (ibv_post_recv(qp, &receive, &bad_receive) != 0 || ibv_post_send(qp, &send, &bad_send) != 0) die("post");
        struct ibv_wc wc;
        while (ibv_poll_cq(cq, 1, &wc) == 0) {}
        if (wc.status != IBV_WC_SUCCESS) die("%s", ibv_wc_status_str(wc.status));
        printf("%s is %s\n", guesses[i], wc.imm_data == RIGHT ? "right" : "wrong");
    }
    close(stream);
}

int main(int argc, char **argv) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (!rdmesh_chain_is_available()) die("run this by `rdmesh run`");
    struct ibv_pd *pd = ibv_alloc_pd(open_device());
    if (argc > 1) guess(pd, argv[1], argc - 2, argv + 2);
    else serve(pd);
    return 0;
}
