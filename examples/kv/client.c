#define _GNU_SOURCE
#include "chain.h"
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { SECONDS = 5, RECEIVES = 4 };

int kv_dial(const char *host, const char *port) {
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
    if (!client->in || !fgets(client->line, KV_LINE, client->in)) return NULL;
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

struct kv_client *kv_client_open(const char *host, const char *port) {
    struct kv_client *client = calloc(1, sizeof *client);
    int fd = kv_dial(host, port);
    if (!client || fd < 0) {
        free(client);
        return NULL;
    }
    client->line = malloc(KV_LINE);
    client->in = fdopen(fd, "r");
    client->out = fdopen(dup(fd), "w");
    if (open_queue_pair(client)) kv_chain_open(client, host, port);
    return client;
}

void kv_client_close(struct kv_client *client) {
    kv_chain_close(client);
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

int kv_memory(struct kv_client *client, size_t length) {
    client->memory = calloc(1, length);
    client->mr = client->memory ? ibv_reg_mr(client->pd, client->memory, length, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE) : NULL;
    return client->mr != NULL;
}

static int post_receive(struct kv_client *client) {
    struct ibv_recv_wr receive = {.wr_id = 1}, *bad;
    return ibv_post_recv(client->qp, &receive, &bad) == 0;
}

int kv_join(struct kv_client *client, uint32_t psn, const struct kv_end *peer) {
    if (kv_connect(client->qp, psn, peer, IBV_ACCESS_REMOTE_WRITE)) return 0;
    for (int i = 0; i < RECEIVES; i++) {
        if (!post_receive(client)) return 0;
    }
    return 1;
}

int kv_exchange(struct kv_client *client, uint32_t length, uint32_t tag, uint32_t *reply_length) {
    struct ibv_sge sge = {(uintptr_t)client->memory, length, client->mr->lkey};
    struct ibv_send_wr send = {.wr_id = 2, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED}, *bad;
    if (ibv_post_send(client->qp, &send, &bad)) return 0;
    time_t end = time(NULL) + SECONDS;
    for (int seen = 0; seen != 3;) {
        struct ibv_wc wc;
        int count = ibv_poll_cq(client->cq, 1, &wc);
        if (count < 0 || (count == 0 && time(NULL) > end) || (count == 1 && wc.status != IBV_WC_SUCCESS)) return 0;
        if (count == 0) continue;
        if (wc.wr_id == 1 && !post_receive(client)) return 0;
        /* Another tag is that of a second reply to an earlier request. */
        if (wc.wr_id == 1 && wc.imm_data != tag) continue;
        seen |= (int)wc.wr_id;
        if (wc.wr_id == 1) *reply_length = wc.byte_len;
    }
    return 1;
}

struct kv_result kv_get_by_socket(struct kv_client *client, const char *key) {
    struct kv_result result = {.way = KV_NONE};
    char line[300];
    snprintf(line, sizeof line, "get %s", key);
    const char *answer = kv_command(client, line, NULL, 0);
    if (!answer || sscanf(answer, "VALUE %*s %u %zu", &result.flags, &result.length) != 2 || result.length > KV_LINE / 2) return result;
    /* The value, the end of its line, and the end of the answer. */
    if (fread(client->line, 1, result.length + 7, client->in) == result.length + 7) {
        result.way = KV_SOCKET;
        result.bytes = client->line;
    }
    return result;
}

struct kv_result kv_get(struct kv_client *client, const char *key) {
    struct kv_result result;
    return kv_chain_get(client, key, &result) ? result : kv_get_by_socket(client, key);
}
