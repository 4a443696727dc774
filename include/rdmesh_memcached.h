/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Memcached get by chain: values of an unmodified memcached 1.6, found in the process's own memory, on 64-bit machines with
 * little-endian words. docs/tutorials/memcached.md explains it; examples/memcached has the server's and the client's part.
 *
 * The functions are in librdmesh.so, as those of rdmesh_chain.h; results and errors are as there.
 */
#ifndef RDMESH_MEMCACHED_H
#define RDMESH_MEMCACHED_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#ifndef RDMESH_API
#define RDMESH_API __attribute__((weak))
#endif

/* Shape of a memcached's memory: server and clients must agree on it. */
struct rdmesh_memcached_shape {
    uint32_t hash_power; /* there are 2^hash_power buckets */
    uint32_t hops;       /* items of a bucket that are looked at: 1 to 8 */
    uint64_t items;      /* bytes of the memory in which the items lie */
};

/*
 * The chain. It is installed with two tables (rdmesh_install.tables): "table", the buckets, registered from address 0 on; and
 * "items", registered by its address in the process (ibv_reg_mr), for pointers to items are used as they are. Its last 2 MiB
 * must not have items.
 */
RDMESH_API struct rdmesh_chain *rdmesh_memcached_chain(const struct rdmesh_memcached_shape *shape);

/* The client's part. It needs no device of rdmesh's: any verbs send the message. */
struct rdmesh_memcached_client;
RDMESH_API struct rdmesh_memcached_client *rdmesh_memcached_client_new(const struct rdmesh_memcached_shape *shape);

/* Bytes of an item's header. */
#define RDMESH_MEMCACHED_HEAD 56

/* Where replies go: registered memory of the client's. */
struct rdmesh_memcached_buffer {
    uint64_t address; /* of `room` bytes for the item, at most 1 MiB: header, key and value */
    uint64_t check;   /* of RDMESH_MEMCACHED_HEAD bytes for its header once more */
    uint32_t rkey;
    uint32_t room;
};

/* Writes the message that asks for a key; returns its length. The reply is a WRITE of the header with immediate data, the tag, after
 * one of the item without. */
RDMESH_API int rdmesh_memcached_request(struct rdmesh_memcached_client *client, const void *key, size_t key_length,
                                        const struct rdmesh_memcached_buffer *buffer, void *message, size_t size, uint32_t *tag);

enum rdmesh_memcached_kind {
    RDMESH_MEMCACHED_VALUE = 0,
    RDMESH_MEMCACHED_MISS = 1,      /* not found: ask by socket */
    RDMESH_MEMCACHED_CHANGED = 2,   /* while it was sent, or another key's: ask again, or by socket */
    RDMESH_MEMCACHED_TOO_LONG = 3,  /* for the buffer: `length` is the room that it needs */
    RDMESH_MEMCACHED_ELSEWHERE = 4, /* expired, in chunks or on disk: ask by socket */
    RDMESH_MEMCACHED_STALE = 5,     /* a reply to a request that was answered already */
};

struct rdmesh_memcached_answer {
    uint32_t kind; /* enum rdmesh_memcached_kind */
    uint32_t flags;
    uint64_t cas;
    const void *value; /* in the item */
    size_t length;
};

/* Judges a reply by its immediate data (wc.imm_data as it is), the `head_length` bytes of header that it wrote (wc.byte_len; 0 for a
 * miss), and the item with all of its room. `now`: seconds by memcached's own clock, see rdmesh_memcached_clock. */
RDMESH_API int rdmesh_memcached_reply(struct rdmesh_memcached_client *client, uint32_t tag, const void *head, size_t head_length,
                                      const void *item, size_t room, uint32_t now, struct rdmesh_memcached_answer *answer);
RDMESH_API void rdmesh_memcached_client_free(struct rdmesh_memcached_client *client);

/* memcached's clock when its `stats` say this uptime: it begins some time before the process. */
static inline uint32_t rdmesh_memcached_clock(uint32_t uptime) {
    return uptime + 60;
}

#ifdef __cplusplus
}
#endif

#endif
