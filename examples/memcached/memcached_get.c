/* Chains of a memcached with librdmesh-memcached.so, for the client of ../kv. */
#include "../../include/rdmesh_memcached.h"
#include "../../include/rdmesh_chain.h"
#include "../kv/chain.h"
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { TRIES = 8, CHECK = KV_MESSAGE, ITEM = 512, MOST = 1 << 20 };

struct chain {
    struct rdmesh_memcached_client *client;
    uint32_t room;       /* that the last values needed */
    uint32_t clock;      /* of memcached, when the connection was made */
    time_t connected;
    int fd;              /* while it is open, the server keeps the chain */
};

static time_t seconds(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return at.tv_sec;
}

/* memcached's clock, by its uptime. */
static uint32_t ask_clock(struct kv_client *client) {
    unsigned uptime = 0;
    const char *line = kv_command(client, "stats", NULL, 0);
    while (line && strcmp(line, "END") != 0) {
        sscanf(line, "STAT uptime %u", &uptime);
        line = fgets(client->line, KV_LINE, client->in);
        if (line) client->line[strcspn(client->line, "\r\n")] = 0;
    }
    return rdmesh_memcached_clock(uptime);
}

/* Asks the thread in memcached for a chain, at the port behind memcached's own. */
static int ask_chain(struct kv_client *client, const char *host, const char *port, struct rdmesh_memcached_shape *shape) {
    struct kv_end own, peer;
    char gid[33], qpn[16], psn[16], line[256], chain_port[16];
    unsigned long long items;
    snprintf(chain_port, sizeof chain_port, "%d", atoi(port) + 1);
    int fd = kv_own_end(client->qp, &own) ? -1 : kv_dial(host, chain_port);
    if (fd < 0) return -1;
    kv_print_gid(&own.gid, gid);
    int length = snprintf(line, sizeof line, "chain %s %u %u\n", gid, own.qpn, own.psn);
    ssize_t got = send(fd, line, (size_t)length, MSG_NOSIGNAL) == length ? recv(fd, line, sizeof line - 1, 0) : -1;
    line[got > 0 ? got : 0] = 0;
    if (sscanf(line, "CHAIN %32s %15s %15s %u %u %llu", gid, qpn, psn, &shape->hash_power, &shape->hops, &items) == 6 &&
        kv_parse_end(gid, qpn, psn, &peer) && kv_join(client, own.psn, &peer)) {
        shape->items = items;
        return fd;
    }
    close(fd);
    return -1;
}

void kv_chain_open(struct kv_client *client, const char *host, const char *port) {
    struct rdmesh_memcached_shape shape;
    if (!rdmesh_chain_is_available() || !kv_memory(client, ITEM + MOST)) return;
    int fd = ask_chain(client, host, port, &shape);
    struct chain *chain = fd >= 0 ? malloc(sizeof *chain) : NULL;
    if (!chain) return;
    *chain = (struct chain){rdmesh_memcached_client_new(&shape), 4096, ask_clock(client), seconds(), fd};
    client->chain = chain;
}

void kv_chain_close(struct kv_client *client) {
    struct chain *chain = client->chain;
    if (!chain) return;
    rdmesh_memcached_client_free(chain->client);
    close(chain->fd);
    free(chain);
    client->chain = NULL;
}

/* One question, and what is to be thought of its answer; -1 where the chain has ended. */
static int ask(struct kv_client *client, struct chain *chain, const char *key, struct rdmesh_memcached_answer *answer) {
    char *head = client->memory + CHECK, *item = client->memory + ITEM;
    struct rdmesh_memcached_buffer to = {(uintptr_t)item, (uintptr_t)head, client->mr->rkey, chain->room};
    uint32_t tag, head_length = 0, now = chain->clock + (uint32_t)(seconds() - chain->connected);
    int length = rdmesh_memcached_request(chain->client, key, strlen(key), &to, client->memory, KV_MESSAGE, &tag);
    if (length < 0) return length;
    if (!kv_exchange(client, (uint32_t)length, tag, &head_length)) return -1;
    int error = rdmesh_memcached_reply(chain->client, tag, head, head_length, item, chain->room, now, answer);
    if (error || answer->kind != RDMESH_MEMCACHED_VALUE) return error;
    /* Items of the same last bytes in one bucket are both sent: the second may come while the first is looked at. */
    answer->value = memcpy(client->line, answer->value, answer->length);
    if (memcmp(item + 48, head + 48, 8) != 0) answer->kind = RDMESH_MEMCACHED_CHANGED;
    return 0;
}

int kv_chain_get(struct kv_client *client, const char *key, struct kv_result *result) {
    for (int i = 0; client->chain && i < TRIES; i++) {
        struct chain *chain = client->chain;
        struct rdmesh_memcached_answer answer = {.kind = RDMESH_MEMCACHED_MISS};
        if (ask(client, chain, key, &answer) < 0) {
            kv_chain_close(client);
            return 0;
        }
        switch (answer.kind) {
        case RDMESH_MEMCACHED_VALUE:
            *result = (struct kv_result){KV_CHAIN, answer.flags, answer.length, answer.value};
            return 1;
        case RDMESH_MEMCACHED_CHANGED: continue;
        case RDMESH_MEMCACHED_TOO_LONG:
            if (answer.length > MOST) return 0;
            chain->room = (uint32_t)answer.length;
            continue;
        default: return 0;
        }
    }
    return 0;
}
