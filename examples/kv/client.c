#define _GNU_SOURCE
#include "client.h"
#include "../../include/rdmesh_chain.h"
#include "shared.h"
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { MESSAGE = 256, TRIES = 8, SECONDS = 5, LINE = 2 << 20 };

struct kv_client {
    FILE *in, *out; /* NULL: the server's process has gone */
    char *line;
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_cq *cq;
    struct ibv_qp *qp;
    struct ibv_mr *mr;
    char *memory; /* the message, then the reply */
    struct rdmesh_hash_client *hash; /* NULL: there is no chain, or it has ended */
    struct rdmesh_hash_shape shape;
};

static int dial(const char *host, const char *port) {
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found;
    int fd = -1, on = 1;
    if (getaddrinfo(host, port, &hints, &found)) return -1;
    for (struct addrinfo *at = found; at && fd < 0; at = at->ai_next) {
        fd = socket(at->ai_family, at->ai_socktype | SOCK_CLOEXEC, 0);
        if (fd >= 0 && connect(fd, at->ai_addr, at->ai_addrlen)) {
            close(fd);
            fd = -1;
        }
    }
    freeaddrinfo(found);
    if (fd >= 0) setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return fd;
}

static const char *read_line(struct kv_client *client) {
    if (!client->in || !fgets(client->line, LINE, client->in)) return NULL;
    client->line[strcspn(client->line, "\r\n")] = 0;
    return client->line;
}

const char *kv_command(struct kv_client *client, const char *line, const char *data, size_t length) {
    if (!client->out) return NULL;
    fprintf(client->out, "%s\r\n", line);
    if (data) {
        fwrite(data, 1, length, client->out);
        fputs("\r\n", client->out);
    }
    const char *answer = fflush(client->out) ? NULL : read_line(client);
    if (!answer) {
        fclose(client->in);
        fclose(client->out);
        client->in = client->out = NULL;
    }
    return answer;
}

/* Opens a device, and a queue pair on it. */
static int open_queue_pair(struct kv_client *client) {
    client->context = kv_open_device();
    client->pd = client->context ? ibv_alloc_pd(client->context) : NULL;
    client->cq = client->pd ? ibv_create_cq(client->context, 16, NULL, NULL, 0) : NULL;
    struct ibv_qp_init_attr init = {.send_cq = client->cq, .recv_cq = client->cq, .qp_type = IBV_QPT_RC,
                                    .cap = {.max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 1, .max_recv_sge = 1}};
    client->qp = client->cq ? ibv_create_qp(client->pd, &init) : NULL;
    return client->qp != NULL;
}

/* Asks the server for a chain. */
static void open_chain(struct kv_client *client) {
    struct kv_end own, peer;
    char gid[33], line[128], qpn[16], psn[16];
    unsigned long long buckets, records, record_size;
    unsigned probe;
    if (!rdmesh_chain_is_available() || !open_queue_pair(client) || kv_own_end(client->qp, &own)) return;
    kv_print_gid(&own.gid, gid);
    snprintf(line, sizeof line, "chain %s %u %u", gid, own.qpn, own.psn);
    const char *answer = kv_command(client, line, NULL, 0);
    if (!answer || sscanf(answer, "CHAIN %32s %15s %15s %llu %llu %llu %u", gid, qpn, psn, &buckets, &records, &record_size, &probe) != 7 ||
        !kv_parse_end(gid, qpn, psn, &peer) || record_size > 1 << 20) {
        return;
    }
    client->shape = (struct rdmesh_hash_shape){.buckets = buckets, .records = records, .record_size = record_size, .probe = probe};
    client->memory = calloc(1, MESSAGE + record_size);
    client->mr = client->memory ? ibv_reg_mr(client->pd, client->memory, MESSAGE + record_size, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE)
                                : NULL;
    if (client->mr && kv_connect(client->qp, own.psn, &peer, IBV_ACCESS_REMOTE_WRITE) == 0) {
        client->hash = rdmesh_hash_client_new(&client->shape);
    }
}

struct kv_client *kv_client_open(const char *host, const char *port) {
    struct kv_client *client = calloc(1, sizeof *client);
    int fd = dial(host, port);
    if (!client || fd < 0) {
        free(client);
        return NULL;
    }
    client->line = malloc(LINE);
    client->in = fdopen(fd, "r");
    client->out = fdopen(dup(fd), "w");
    open_chain(client);
    return client;
}

void kv_client_close(struct kv_client *client) {
    if (client->hash) rdmesh_hash_client_free(client->hash);
    if (client->qp) ibv_destroy_qp(client->qp);
    if (client->cq) ibv_destroy_cq(client->cq);
    if (client->mr) ibv_dereg_mr(client->mr);
    if (client->pd) ibv_dealloc_pd(client->pd);
    if (client->context) ibv_close_device(client->context);
    if (client->in) fclose(client->in);
    if (client->out) fclose(client->out);
    free(client->memory);
    free(client->line);
    free(client);
}

/* Sends a message, and waits for its reply: its tag and length. */
static int exchange(struct kv_client *client, int length, uint32_t *tag, uint32_t *reply_length) {
    struct ibv_sge sge = {(uintptr_t)client->memory, (uint32_t)length, client->mr->lkey};
    struct ibv_recv_wr receive = {.wr_id = 1}, *bad_receive;
    struct ibv_send_wr send = {.wr_id = 2, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED}, *bad_send;
    if (ibv_post_recv(client->qp, &receive, &bad_receive) || ibv_post_send(client->qp, &send, &bad_send)) return 0;
    time_t end = time(NULL) + SECONDS;
    for (int seen = 0; seen != 3;) {
        struct ibv_wc wc;
        int count = ibv_poll_cq(client->cq, 1, &wc);
        if (count < 0 || (count == 0 && time(NULL) > end) || (count == 1 && wc.status != IBV_WC_SUCCESS)) return 0;
        if (count == 0) continue;
        seen |= (int)wc.wr_id;
        if (wc.wr_id == 1) {
            *tag = wc.imm_data;
            *reply_length = wc.byte_len;
        }
    }
    return 1;
}

/* By chain: whether there was an answer that counts. */
static int get_by_chain(struct kv_client *client, const char *key, struct kv_result *result) {
    char *reply = client->memory + MESSAGE;
    for (int i = 0; client->hash && i < TRIES; i++) {
        uint32_t tag, reply_length = 0;
        struct rdmesh_answer answer;
        int length = rdmesh_hash_request(client->hash, key, strlen(key), (uintptr_t)reply, client->mr->rkey, client->memory, MESSAGE, &tag);
        if (length < 0) return 0;
        if (!exchange(client, length, &tag, &reply_length)) {
            /* The device, or the server's, has ended: from now on by socket. */
            rdmesh_hash_client_free(client->hash);
            client->hash = NULL;
            return 0;
        }
        if (rdmesh_hash_reply(client->hash, tag, reply, reply_length, &answer) < 0) return 0;
        if (answer.kind == RDMESH_TORN) continue;
        const struct kv_value *value = answer.value;
        if (answer.kind != RDMESH_VALUE || answer.length < sizeof *value) return 0;
        /* Only the server takes what has expired out of its table. */
        if (value->expires && value->expires <= (uint64_t)time(NULL)) return 0;
        *result = (struct kv_result){KV_CHAIN, value->flags, value->length, value->bytes};
        return 1;
    }
    return 0;
}

struct kv_result kv_get_by_socket(struct kv_client *client, const char *key) {
    struct kv_result result = {.way = KV_NONE};
    char line[300];
    snprintf(line, sizeof line, "get %s", key);
    const char *answer = kv_command(client, line, NULL, 0);
    if (!answer || sscanf(answer, "VALUE %*s %u %zu", &result.flags, &result.length) != 2 || result.length > LINE / 2) return result;
    /* The value, the end of its line, and the end of the answer. */
    if (fread(client->line, 1, result.length + 7, client->in) == result.length + 7) {
        result.way = KV_SOCKET;
        result.bytes = client->line;
    }
    return result;
}

struct kv_result kv_get(struct kv_client *client, const char *key) {
    struct kv_result result;
    return get_by_chain(client, key, &result) ? result : kv_get_by_socket(client, key);
}
