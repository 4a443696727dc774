/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A client of hash_server: asks for the keys that are its arguments, all at once, and prints their values.
 *
 *     rdmesh run --name b --net blue --ip 10.7.0.3 -- ./hash_client 10.7.0.2 one two nothing
 *
 * What it sends and receives are ordinary verbs; only message and reply are encoded by the library.
 */
#include "connect.h"
#include "hash_table.h"

enum { OUTSTANDING = 16, MESSAGE = 64 };

struct client {
    struct ibv_cq *cq;
    struct ibv_qp *qp;
    struct ibv_mr *mr;
    struct rdmesh_hash_client *keys;
    char *buffer;                  /* a reply and a message for each outstanding request */
    const char *asked[OUTSTANDING];
    uint32_t tags[OUTSTANDING];
};

static char *reply_of(struct client *client, int request) { return client->buffer + (size_t)request * SHAPE.record_size; }

static char *message_of(struct client *client, int request) {
    return client->buffer + OUTSTANDING * SHAPE.record_size + (size_t)request * MESSAGE;
}

static void open_client(struct client *client, const char *server) {
    struct ibv_context *context = open_device();
    struct ibv_pd *pd = ibv_alloc_pd(context);
    client->cq = ibv_create_cq(context, 4 * OUTSTANDING, NULL, NULL, 0);
    struct ibv_qp_init_attr init = {.send_cq = client->cq, .recv_cq = client->cq, .qp_type = IBV_QPT_RC,
                                    .cap = {.max_send_wr = OUTSTANDING, .max_recv_wr = OUTSTANDING, .max_send_sge = 1, .max_recv_sge = 1}};
    client->qp = ibv_create_qp(pd, &init);
    size_t size = OUTSTANDING * (SHAPE.record_size + MESSAGE);
    client->buffer = calloc(1, size);
    client->mr = ibv_reg_mr(pd, client->buffer, size, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    if (!client->qp || !client->mr) die("verbs: %s", strerror(errno));
    char port[8];
    snprintf(port, sizeof port, "%d", PORT);
    join(connect_to(server, port), client->qp, IBV_ACCESS_REMOTE_WRITE);
    client->keys = rdmesh_hash_client_new(&SHAPE);
}

static void ask(struct client *client, int request, const char *key) {
    char *message = message_of(client, request);
    int length = rdmesh_hash_request(client->keys, key, strlen(key), (uintptr_t)reply_of(client, request), client->mr->rkey,
                                     message, MESSAGE, &client->tags[request]);
    if (length < 0) die("%s: %s", key, rdmesh_chain_error());
    client->asked[request] = key;
    /* The reply is a WRITE with immediate data, which takes a receive request. */
    struct ibv_recv_wr receive = {.num_sge = 0}, *bad_receive;
    struct ibv_sge sge = {.addr = (uintptr_t)message, .length = (uint32_t)length, .lkey = client->mr->lkey};
    struct ibv_send_wr send = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND}, *bad_send;
    if (ibv_post_recv(client->qp, &receive, &bad_receive) != 0 || ibv_post_send(client->qp, &send, &bad_send) != 0) die("post");
}

static void print_reply(struct client *client) {
    struct ibv_wc wc;
    while (ibv_poll_cq(client->cq, 1, &wc) == 0) {}
    if (wc.status != IBV_WC_SUCCESS) die("%s", ibv_wc_status_str(wc.status));
    int request = 0;
    while (client->tags[request] != wc.imm_data) request++;
    struct rdmesh_answer answer;
    rdmesh_hash_reply(client->keys, wc.imm_data, reply_of(client, request), wc.byte_len, &answer);
    static const char *const KINDS[] = {"", "not there", "not there any more", "changed meanwhile", "asked twice"};
    if (answer.kind == RDMESH_VALUE) printf("%s: %.*s\n", client->asked[request], (int)answer.length, (const char *)answer.value);
    else printf("%s (%s)\n", client->asked[request], KINDS[answer.kind]);
}

int main(int argc, char **argv) {
    struct client client = {0};
    if (!rdmesh_chain_is_available()) die("run this by `rdmesh run`");
    if (argc < 3 || argc - 2 > OUTSTANDING) die("usage: hash_client SERVER KEY... (up to %d)", OUTSTANDING);
    open_client(&client, argv[1]);
    for (int i = 2; i < argc; i++) ask(&client, i - 2, argv[i]);
    for (int i = 2; i < argc; i++) print_reply(&client);
    return 0;
}
