/* A client that gets values by chain, and by socket what a chain does not answer. */
#pragma once
#include <stddef.h>
#include <stdint.h>

struct kv_client;

/* Connects. Without a device, or where the server has no chains, all goes by socket. */
struct kv_client *kv_client_open(const char *host, const char *port);
void kv_client_close(struct kv_client *client);

enum kv_way { KV_NONE, KV_CHAIN, KV_SOCKET };

struct kv_result {
    enum kv_way way; /* KV_NONE: the key is not there, or the server has gone */
    uint32_t flags;
    size_t length;
    const char *bytes; /* until the next call */
};

struct kv_result kv_get(struct kv_client *client, const char *key);
/* The same by socket only. */
struct kv_result kv_get_by_socket(struct kv_client *client, const char *key);

/* Sends a command line, with the data that belongs to it; returns the first line of the answer, or NULL if the server has gone. */
const char *kv_command(struct kv_client *client, const char *line, const char *data, size_t length);
