/* A client, and what is different from one kind of chain to the next. */
#pragma once
#include "client.h"
#include "shared.h"
#include <stdio.h>

enum { KV_LINE = 2 << 20, KV_MESSAGE = 256 };

struct kv_client {
    FILE *in, *out; /* NULL: the server's process has gone */
    char *line;
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_cq *cq;
    struct ibv_qp *qp;
    struct ibv_mr *mr;
    char *memory; /* the message, then what chains write */
    void *chain;  /* NULL: there is none, or it has ended */
};

/* Connects by TCP; -1 where it fails. */
int kv_dial(const char *host, const char *port);
/* Allocates and registers memory. */
int kv_memory(struct kv_client *client, size_t length);
/* Connects the queue pair to the server's. */
int kv_join(struct kv_client *client, uint32_t psn, const struct kv_end *peer);
/* Sends the message, and waits for the reply with its tag. 0: the device, or the server's, has ended. */
int kv_exchange(struct kv_client *client, uint32_t length, uint32_t tag, uint32_t *reply_length);

/* Of each kind: asks the server for a chain; gets a value, if there is an answer that counts. */
void kv_chain_open(struct kv_client *client, const char *host, const char *port);
int kv_chain_get(struct kv_client *client, const char *key, struct kv_result *result);
void kv_chain_close(struct kv_client *client);
