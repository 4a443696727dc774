/* Chains of this example's own server. */
#include "../../include/rdmesh_chain.h"
#include "chain.h"
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { TRIES = 8 };

void kv_chain_open(struct kv_client *client, const char *host, const char *port) {
    struct kv_end own, peer;
    char gid[33], line[128], qpn[16], psn[16];
    unsigned long long buckets, records, record_size;
    unsigned probe;
    (void)host, (void)port; /* by the connection that there is */
    if (!rdmesh_chain_is_available() || kv_own_end(client->qp, &own)) return;
    kv_print_gid(&own.gid, gid);
    snprintf(line, sizeof line, "chain %s %u %u", gid, own.qpn, own.psn);
    const char *answer = kv_command(client, line, NULL, 0);
    if (!answer || sscanf(answer, "CHAIN %32s %15s %15s %llu %llu %llu %u", gid, qpn, psn, &buckets, &records, &record_size, &probe) != 7 ||
        !kv_parse_end(gid, qpn, psn, &peer) || record_size > 1 << 20) {
        return;
    }
    struct rdmesh_hash_shape shape = {.buckets = buckets, .records = records, .record_size = record_size, .probe = probe};
    if (kv_memory(client, KV_MESSAGE + record_size) && kv_join(client, own.psn, &peer)) client->chain = rdmesh_hash_client_new(&shape);
}

void kv_chain_close(struct kv_client *client) {
    if (client->chain) rdmesh_hash_client_free(client->chain);
    client->chain = NULL;
}

int kv_chain_get(struct kv_client *client, const char *key, struct kv_result *result) {
    char *reply = client->memory + KV_MESSAGE;
    for (int i = 0; client->chain && i < TRIES; i++) {
        uint32_t tag, reply_length = 0;
        struct rdmesh_answer answer;
        int length = rdmesh_hash_request(client->chain, key, strlen(key), (uintptr_t)reply, client->mr->rkey, client->memory, KV_MESSAGE, &tag);
        if (length < 0) return 0;
        if (!kv_exchange(client, (uint32_t)length, tag, &reply_length)) {
            kv_chain_close(client);
            return 0;
        }
        if (rdmesh_hash_reply(client->chain, tag, reply, reply_length, &answer) < 0) return 0;
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
