#include "serve.h"
#include "../../include/rdmesh_chain.h"
#include "shared.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Values with their keys up to some 4000 bytes are served by chain; what does not fit is served by socket. */
static const struct rdmesh_hash_shape SHAPE = {.buckets = 1 << 14, .records = 1 << 12, .record_size = 4096, .probe = RDMESH_TWO_CHOICE};

static struct ibv_pd *pd;
static struct rdmesh_chain *chain;
static struct rdmesh_service *tables; /* of no client: its memory is that of all others */
static struct rdmesh_hash *hash;
static unsigned clients;

/* Every change of the store is in the table before the client that made it has its answer. */
static void mirror(const char *key, size_t key_length, const struct item *item) {
    if (!hash) return;
    if (item && key_length + item->length <= SHAPE.record_size) {
        struct kv_value *value = malloc(sizeof *value + item->length);
        if (value) {
            *value = (struct kv_value){item->expires, item->cas, item->flags, (uint32_t)item->length};
            memcpy(value->bytes, item->bytes + item->key_length, item->length);
            int error = rdmesh_hash_insert(hash, key, key_length, value, sizeof *value + item->length);
            free(value);
            if (error == 0) return;
        }
    }
    /* There is no room for it: chains miss it, and clients ask by socket. */
    rdmesh_hash_remove(hash, key, key_length);
}

int serve_start(void) {
    struct ibv_context *context = rdmesh_chain_is_available() ? kv_open_device() : NULL;
    pd = context ? ibv_alloc_pd(context) : NULL;
    if (!pd) return 0;
    chain = rdmesh_hash_chain(&SHAPE, RDMESH_DESIGN_LOCAL);
    tables = chain ? rdmesh_chain_install(chain, pd, NULL, 0) : NULL;
    hash = tables ? rdmesh_hash_open(&SHAPE, tables) : NULL;
    if (!hash) {
        fprintf(stderr, "no chains: %s\n", rdmesh_chain_error());
        return 0;
    }
    store_watch(mirror);
    return 1;
}

void *serve_open(const char *gid, const char *qpn, const char *psn, char *answer, size_t size) {
    struct kv_end peer, own;
    char text[33];
    if (!hash || !kv_parse_end(gid, qpn, psn, &peer)) {
        snprintf(answer, size, hash ? "CLIENT_ERROR bad address" : "SERVER_ERROR no chains here");
        return NULL;
    }
    struct rdmesh_service *service = rdmesh_chain_install(chain, pd, tables, 0);
    struct ibv_qp *qp = service ? rdmesh_service_qp(service) : NULL;
    /* The client may do nothing but send messages. */
    if (!qp || kv_own_end(qp, &own) || kv_connect(qp, own.psn, &peer, 0)) {
        snprintf(answer, size, "SERVER_ERROR no chain: %s", service ? "the connection failed" : rdmesh_chain_error());
        if (service) rdmesh_service_close(service);
        return NULL;
    }
    kv_print_gid(&own.gid, text);
    snprintf(answer, size, "CHAIN %s %u %u %llu %llu %llu %u", text, own.qpn, own.psn, (unsigned long long)SHAPE.buckets,
             (unsigned long long)SHAPE.records, (unsigned long long)SHAPE.record_size, SHAPE.probe);
    clients++;
    return service;
}

void serve_close(void *service) {
    clients--;
    rdmesh_service_close(service);
}

void serve_tick(void) {
    /* A reply takes microseconds: those that had begun a second ago have ended. One that had not would have a wrong checksum. */
    static time_t last;
    time_t now = time(NULL);
    if (hash && now > last + 1) {
        rdmesh_hash_reclaim(hash);
        last = now;
    }
}

unsigned serve_clients(void) { return clients; }
