/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Chains: programs of work requests that the NIC executes, such as a look-up in a hash table of which the server's
 * processor takes no notice. docs/tutorials/chains.md explains them.
 *
 * The functions are in librdmesh.so, which `rdmesh run` loads into the program: nothing needs to be linked. They are
 * weak symbols: where the library is absent they are NULL, see rdmesh_chain_is_available().
 *
 * They work on the objects of the distribution's libibverbs. Functions that return int return 0 or a count, or a
 * negative errno; those that return a pointer return NULL, with errno set. rdmesh_chain_error() says why, in words.
 * Different objects may be used by different threads at once; one object by one thread at a time.
 */
#ifndef RDMESH_CHAIN_H
#define RDMESH_CHAIN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ibv_context;
struct ibv_cq;
struct ibv_pd;
struct ibv_qp;

#define RDMESH_API __attribute__((weak))

/* Why the last call of this thread failed, in words; "" if none has. Valid until its next call. */
RDMESH_API const char *rdmesh_chain_error(void);

/* Whether the library is there. */
static inline int rdmesh_chain_is_available(void) {
    return rdmesh_chain_error != NULL;
}

/* ---- Chains ---------------------------------------------------------------------------------------------------- */

/* A chain: verified, and in no queue yet. */
struct rdmesh_chain;

/* The way in which a program becomes queues. */
enum rdmesh_design {
    RDMESH_DESIGN_LOCAL = 0,    /* one queue for each client, on rdmesh's NIC only: the fastest */
    RDMESH_DESIGN_PORTABLE = 1, /* with what RDMA NICs have: queue pairs that are looped back, WAIT and ENABLE */
};

/* The chain of a text in the syntax of rdmesh_chain_listing. An error names the line, or the label of a request. */
RDMESH_API struct rdmesh_chain *rdmesh_chain_assemble(const char *text);

/* The chain `count` times in the same queues: a client may have as many requests outstanding. */
RDMESH_API struct rdmesh_chain *rdmesh_chain_instances(const struct rdmesh_chain *chain, uint32_t count);

/* Writes the listing and a NUL into `buffer`, cut off at `size`; returns its whole length, as snprintf does. */
RDMESH_API int rdmesh_chain_listing(const struct rdmesh_chain *chain, char *buffer, size_t size);

/* Maximum cost of one lap. */
struct rdmesh_chain_cost {
    uint64_t copies;   /* requests that move data */
    uint64_t atomics;  /* COMPARE_SWAP, ADD, MIN, MAX */
    uint64_t orders;   /* WAIT, ENABLE */
    uint64_t requests; /* all work requests */
    uint64_t steps;    /* what the endpoint's budget is charged */
    uint64_t bytes;
};

RDMESH_API int rdmesh_chain_cost(const struct rdmesh_chain *chain, struct rdmesh_chain_cost *cost);

/* Bytes of a client's message: exactly so many must be sent. */
RDMESH_API int rdmesh_chain_message_length(const struct rdmesh_chain *chain);

/* Services that were installed from it are not concerned. */
RDMESH_API void rdmesh_chain_free(struct rdmesh_chain *chain);

/* ---- Services: installed chains -------------------------------------------------------------------------------- */

/* A chain in queues, for one client. */
struct rdmesh_service;

/*
 * Installs a chain: makes its completion queues, queue pairs and memory in the protection domain, fills in the queues,
 * seals them and enables them. It serves from when the program has connected rdmesh_service_qp(service) to the client.
 *
 * With `beside`, tables and shared memory are those of another service, so that several clients are served from the
 * same ones. `group` is the number by which `rdmesh chain` names the service; 0 for one that is free.
 */
RDMESH_API struct rdmesh_service *rdmesh_chain_install(const struct rdmesh_chain *chain, struct ibv_pd *pd,
                                                       struct rdmesh_service *beside, uint32_t group);

/*
 * The queue pair for the client, which the program connects as it would any other. Its qp_access_flags should be 0:
 * the client then reaches nothing but what the chain writes its messages to. Replies need max_rd_atomic for nothing.
 * The program may not post to it, nor destroy it.
 */
RDMESH_API struct ibv_qp *rdmesh_service_qp(const struct rdmesh_service *service);

/* The memory of a region by its name; its length goes to `length` if that is not NULL. Words of it are to be changed by single aligned stores. */
RDMESH_API void *rdmesh_service_region(const struct rdmesh_service *service, const char *name, uint64_t *length);

/* The number of its group. */
RDMESH_API uint32_t rdmesh_service_group(const struct rdmesh_service *service);

/* State of a group of managed queues. */
enum rdmesh_state {
    RDMESH_RUNNING = 0,
    RDMESH_STOPPED = 1,
    RDMESH_ENDED = 2, /* by an error, or killed: all its queue pairs are in the error state */
};

struct rdmesh_stats {
    uint32_t group;
    uint32_t state;       /* enum rdmesh_state */
    uint32_t queue_pairs;
    uint32_t has_fault;   /* see rdmesh_service_last_error and rdmesh_group_last_error */
    uint64_t copies;      /* executed requests that move data, and NOPs */
    uint64_t atomics;
    uint64_t orders;
    uint64_t steps;       /* charged to the endpoint's budget */
    uint64_t bytes;
    uint64_t soft_faults; /* READs with SOFT that delivered zeros */
    uint64_t starved;     /* times that the endpoint's budget was spent */
};

/* The request that ended a group. */
struct rdmesh_fault {
    uint32_t queue_pair;  /* qp->handle */
    uint32_t side;        /* enum rdmesh_side */
    uint64_t index;       /* of the request, counted from the queue's first */
    uint32_t status;      /* enum ibv_wc_status */
    uint32_t key;         /* that the request named */
    uint64_t address;
    char label[64];       /* the author's name for the request; "" if it has none */
    char text[192];       /* all of this, in words */
};

RDMESH_API int rdmesh_service_stats(const struct rdmesh_service *service, struct rdmesh_stats *stats);
/* 1 and the fault, or 0 if there is none. */
RDMESH_API int rdmesh_service_last_error(const struct rdmesh_service *service, struct rdmesh_fault *fault);

/* Destroys its queue pairs and completion queues, and the memory that no other service uses. */
RDMESH_API void rdmesh_service_close(struct rdmesh_service *service);

/* ---- Groups of managed queues ---------------------------------------------------------------------------------- */

/* The groups of a device from number `from` on, in order: at most `most`; returns how many. */
RDMESH_API int rdmesh_group_list(struct ibv_context *context, uint32_t from, struct rdmesh_stats *list, int most);
RDMESH_API int rdmesh_group_last_error(struct ibv_context *context, uint32_t group, struct rdmesh_fault *fault);
RDMESH_API int rdmesh_group_stop(struct ibv_context *context, uint32_t group);
RDMESH_API int rdmesh_group_resume(struct ibv_context *context, uint32_t group);
RDMESH_API int rdmesh_group_kill(struct ibv_context *context, uint32_t group);

/* ---- Managed queues: chains by hand ---------------------------------------------------------------------------- */

/* A queue pair with managed queues: they execute what is enabled, lap after lap, and take no notice of doorbells. */
struct rdmesh_queue;

enum rdmesh_side {
    RDMESH_SEND = 0,
    RDMESH_RECEIVE = 1,
};

struct rdmesh_manage {
    uint32_t group;          /* queues of one group may enable each other, and end together */
    uint32_t sends;          /* whether the send queue is managed */
    uint32_t receives;       /* whether the receive queue is */
    uint32_t send_cycle;     /* slots of a lap; 0 for all that there are */
    uint32_t receive_cycle;
};

/* Makes queues of a connected queue pair managed; before RTS, and for as long as it exists. */
RDMESH_API struct rdmesh_queue *rdmesh_queue_manage(struct ibv_qp *qp, const struct rdmesh_manage *how);

struct rdmesh_ring {
    uint32_t key;    /* as lkey and rkey */
    uint32_t stride; /* slot n lies at address n * stride */
    uint32_t slots;
};

/* Registers a ring, so that requests can change requests. `pd` may be NULL for the queue pair's own. */
RDMESH_API int rdmesh_queue_register(struct rdmesh_queue *queue, enum rdmesh_side side, struct ibv_pd *pd, int access,
                                     struct rdmesh_ring *ring);

/* Operations: numbers of a control word. */
enum rdmesh_op {
    RDMESH_WRITE = 0x00,
    RDMESH_WRITE_IMM = 0x01,
    RDMESH_SEND_MESSAGE = 0x02,
    RDMESH_SEND_IMM = 0x03,
    RDMESH_READ = 0x04,
    RDMESH_CAS = 0x05,
    RDMESH_ADD = 0x06,
    RDMESH_MASKED_CAS = 0x0c,
    RDMESH_MASKED_ADD = 0x0d,
    RDMESH_NOP = 0x30,
    RDMESH_WAIT = 0x31,
    RDMESH_ENABLE = 0x32,
    RDMESH_RECV_ENABLE = 0x33,
    RDMESH_MIN = 0x34,
    RDMESH_MAX = 0x35,
};

enum rdmesh_flags {
    RDMESH_FENCE = 1,
    RDMESH_SIGNALED = 2,
    RDMESH_SOLICITED = 4,
    RDMESH_LOCAL = 1 << 26, /* acts on the program's own memory, and has ended before the next slot is fetched */
    RDMESH_SOFT = 1 << 27,  /* a READ of what is not there delivers zeros */
};

/* The control word of a slot, at its byte 8: what a COMPARE_SWAP compares and replaces. The operand has 56 bits. */
static inline uint64_t rdmesh_control(enum rdmesh_op op, int is_quiet, uint64_t operand) {
    return (UINT64_C(1) << 63) | ((uint64_t)(is_quiet != 0) << 62) | ((uint64_t)op << 56) |
           (operand & ((UINT64_C(1) << 56) - 1));
}

/* Bytes of a slot that requests change: docs/tutorials/chains.md has their meaning. */
enum rdmesh_offset {
    RDMESH_AT_CONTROL = 8,
    RDMESH_AT_FLAGS = 16,
    RDMESH_AT_IMM = 20,
    RDMESH_AT_REMOTE = 24,
    RDMESH_AT_RKEY = 32,
    RDMESH_AT_COMPARE = 32,
    RDMESH_AT_SWAP = 40,
    RDMESH_AT_SGE = 208, /* address 8, length 4, key 4 */
};

struct rdmesh_element {
    uint64_t address;
    uint32_t length;
    uint32_t lkey;
};

/* A work request. What an operation does not need stays 0. */
struct rdmesh_request {
    uint64_t id;           /* wr_id of its completion */
    uint32_t op;           /* enum rdmesh_op */
    uint32_t flags;        /* enum rdmesh_flags */
    uint32_t is_quiet;     /* no completion for success */
    uint32_t imm;
    uint64_t operand;      /* 56 bits */
    uint64_t remote;
    uint32_t rkey;
    uint32_t num_elements; /* at most 32, and what the queue has room for */
    const struct rdmesh_element *elements;
    uint64_t compare;      /* or the addend */
    uint64_t swap;
    uint64_t compare_mask;
    uint64_t swap_mask;
    struct ibv_cq *cq;     /* of a WAIT */
    struct ibv_qp *qp;     /* of an ENABLE or RECV_ENABLE */
    uint64_t count;        /* of completions, or requests */
    uint32_t step;         /* growth of `count` with each lap of the queue */
    uint32_t is_relative;  /* an ENABLE adds `count` to the limit */
};

/* Puts a request into a slot of the send queue's ring. Its memory is shared with the NIC: what is enabled may have been fetched. */
RDMESH_API int rdmesh_queue_emit(struct rdmesh_queue *queue, uint32_t slot, const struct rdmesh_request *request);
/* Puts a scatter list into a slot of the receive queue's ring. */
RDMESH_API int rdmesh_queue_emit_receive(struct rdmesh_queue *queue, uint32_t slot, uint64_t id,
                                         const struct rdmesh_element *elements, uint32_t num_elements);

/* Bytes of a slot that may change after the queue was sealed. */
struct rdmesh_hole {
    uint32_t slot;
    uint32_t at;
    uint32_t length;
};

/* Operations that a slot may have after the queue was sealed, as a sum of 1 << op; slots of which nothing is said have any. */
struct rdmesh_allowed {
    uint32_t slot;
    uint32_t reserved;
    uint64_t ops;
};

/* Seals a queue of which nothing was enabled yet, as its ring is now: from then on only holes are taken from the ring. */
RDMESH_API int rdmesh_queue_seal(struct rdmesh_queue *queue, enum rdmesh_side side, const struct rdmesh_hole *holes,
                                 uint32_t num_holes, const struct rdmesh_allowed *allowed, uint32_t num_allowed);
/* Requests before index `limit` may be executed. UINT64_MAX: all, for ever. */
RDMESH_API int rdmesh_queue_enable(struct rdmesh_queue *queue, enum rdmesh_side side, uint64_t limit);
/* Forgets it; the queue pair stays as it is. */
RDMESH_API void rdmesh_queue_free(struct rdmesh_queue *queue);

/* ---- Replies ---------------------------------------------------------------------------------------------------- */

enum rdmesh_answer_kind {
    RDMESH_VALUE = 0,
    RDMESH_MISS = 1,      /* the key is not there */
    RDMESH_OTHER_KEY = 2, /* a record of another key: the key was absent at some time since the request */
    RDMESH_TORN = 3,      /* the record changed while it was sent: ask again */
    RDMESH_STALE = 4,     /* to a request that was answered already, or never made */
};

struct rdmesh_answer {
    uint32_t kind;     /* enum rdmesh_answer_kind */
    uint32_t version;  /* grows with each record of the table */
    const void *value; /* in the bytes of the reply */
    size_t length;
};

/* ---- Hash get: values by key ------------------------------------------------------------------------------------ */

enum rdmesh_probe {
    RDMESH_TWO_CHOICE = 0, /* a key is in one of two buckets */
    RDMESH_EARLY_EXIT = 1, /* the second is read only if the first has another key */
    RDMESH_PARALLEL = 2,   /* each is read in a queue of its own */
    RDMESH_HOPSCOTCH = 3,  /* it is in one of `neighbours`, which one READ fetches */
};

/* Shape of a table: server and clients must agree on it. */
struct rdmesh_hash_shape {
    uint64_t buckets;
    uint64_t records;
    uint64_t record_size; /* at most: 24 and key and value */
    uint32_t probe;       /* enum rdmesh_probe */
    uint32_t neighbours;  /* of RDMESH_HOPSCOTCH */
    uint32_t key_words;   /* 0: fingerprints in the buckets; or words of 7 bytes of the key itself, of which one byte is its length */
    uint32_t reserved;
};

RDMESH_API struct rdmesh_chain *rdmesh_hash_chain(const struct rdmesh_hash_shape *shape, enum rdmesh_design design);

/* The server's table, in the memory of a service of that chain and of those beside it. The service must outlive it. */
struct rdmesh_hash;
RDMESH_API struct rdmesh_hash *rdmesh_hash_open(const struct rdmesh_hash_shape *shape, struct rdmesh_service *service);
RDMESH_API int rdmesh_hash_insert(struct rdmesh_hash *hash, const void *key, size_t key_length, const void *value,
                                  size_t length);
/* 1 if the key was there, 0 if not. */
RDMESH_API int rdmesh_hash_remove(struct rdmesh_hash *hash, const void *key, size_t key_length);
/* Records that were replaced or removed are used again: to be called when replies that had begun have ended. */
RDMESH_API void rdmesh_hash_reclaim(struct rdmesh_hash *hash);
RDMESH_API void rdmesh_hash_close(struct rdmesh_hash *hash);

/* The client's part. It needs no device of rdmesh's: any verbs send the message. */
struct rdmesh_hash_client;
RDMESH_API struct rdmesh_hash_client *rdmesh_hash_client_new(const struct rdmesh_hash_shape *shape);
/*
 * Writes the message that asks for a key; returns its length. The reply is a WRITE to `address` with `rkey`, of
 * record_size bytes at most, and its immediate data is the tag, in the NIC's byte order: wc.imm_data as it is.
 */
RDMESH_API int rdmesh_hash_request(struct rdmesh_hash_client *client, const void *key, size_t key_length,
                                   uint64_t address, uint32_t rkey, void *message, size_t size, uint32_t *tag);
/* Judges a reply by its immediate data and the bytes (wc.byte_len) that it wrote. */
RDMESH_API int rdmesh_hash_reply(struct rdmesh_hash_client *client, uint32_t tag, const void *reply, size_t length,
                                 struct rdmesh_answer *answer);
RDMESH_API void rdmesh_hash_client_free(struct rdmesh_hash_client *client);

#ifdef __cplusplus
}
#endif

#endif
