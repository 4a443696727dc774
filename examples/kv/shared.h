/* What server and client agree on. */
#pragma once
#include <infiniband/verbs.h>
#include <stdint.h>

/* The value of a key in the chain's table. */
struct kv_value {
    uint64_t expires; /* seconds since 1970; 0 for never */
    uint64_t cas;
    uint32_t flags;
    uint32_t length;
    char bytes[];
};

/* An end of a connection. */
struct kv_end {
    union ibv_gid gid;
    uint32_t qpn, psn;
};

enum { KV_GID_INDEX = 1 };

void kv_print_gid(const union ibv_gid *gid, char text[33]);
int kv_parse_end(const char *gid, const char *qpn, const char *psn, struct kv_end *end);

/* The first device, or NULL. */
struct ibv_context *kv_open_device(void);

/* Takes a reliable connection to RTS. `access`: what the peer may do. Returns 0 or an errno. */
int kv_connect(struct ibv_qp *qp, uint32_t psn, const struct kv_end *peer, unsigned access);
/* Its own end, with a fresh PSN. */
int kv_own_end(struct ibv_qp *qp, struct kv_end *end);
