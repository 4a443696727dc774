/* The server's part that chains have: a table that mirrors the store, and a service for each client that asks for one. */
#pragma once
#include "store.h"

#define KV_VERSION "1.6.0-kv"

/* Opens the device; 0 where there is none, and all is served by socket. */
int serve_start(void);

/* Makes a service for a client with this address, and writes the answer to it. */
void *serve_open(const char *gid, const char *qpn, const char *psn, char *answer, size_t size);
void serve_close(void *service);

/* Seconds have passed. */
void serve_tick(void);

unsigned serve_clients(void);
