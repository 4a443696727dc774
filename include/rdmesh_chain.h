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

/* ---- Programs: chains by label and field ------------------------------------------------------------------------ */

/*
 * A straight line of requests, which rdmesh_program_build puts into queues with what orders them. Memory, arguments and
 * requests are numbers from 1 on; 0 stands for none. Texts of errors name requests by their labels.
 *
 * A function that returns a number says of what; the others return 0. All return a negative errno instead, of which
 * rdmesh_chain_error has the text: -EINVAL for what is no program, -ENOMEM.
 */
struct rdmesh_program;
RDMESH_API struct rdmesh_program *rdmesh_program_new(const char *name);
RDMESH_API void rdmesh_program_free(struct rdmesh_program *program);

enum rdmesh_memory_kind {
    RDMESH_TABLE = 0,   /* the program fills it, the chain only reads it */
    RDMESH_SCRATCH = 1, /* of the chain's own */
    RDMESH_SHARED = 2,  /* the program and all its chains read and change it, word by word */
};

/* Memory of so many bytes; rdmesh_service_region has it when the chain is installed, but for scratch memory. Returns its number. */
RDMESH_API int rdmesh_program_memory(struct rdmesh_program *program, const char *name, enum rdmesh_memory_kind kind,
                                     uint64_t length);
/* Memory with these bytes, which stay. Returns its number. */
RDMESH_API int rdmesh_program_constant(struct rdmesh_program *program, const char *name, const void *bytes,
                                       size_t length);

/* Arguments of a client's message, which has them in the order of their declaration; all are little-endian. */
enum rdmesh_argument_kind {
    RDMESH_U32 = 4,
    RDMESH_U40 = 5,
    RDMESH_U56 = 7,
    RDMESH_U64 = 8,
    RDMESH_U120 = 15,
    RDMESH_OFFSET = 64, /* 8 bytes: an offset in memory, whose key is the chain's */
    RDMESH_BUFFER = 65, /* 12 bytes: address and key of the client's memory */
};
/* Returns the argument's number. */
RDMESH_API int rdmesh_program_argument(struct rdmesh_program *program, const char *name, enum rdmesh_argument_kind kind);

/* Bytes of memory, or of a request's slot: fields that other requests or messages fill in. */
struct rdmesh_span {
    uint32_t memory; /* or 0 */
    uint32_t request; /* or 0 */
    uint64_t at;
    uint32_t length;
    uint32_t reserved;
};

static inline struct rdmesh_span rdmesh_bytes(int memory, uint64_t at, uint32_t length) {
    struct rdmesh_span span = {(uint32_t)memory, 0, at, length, 0};
    return span;
}

static inline struct rdmesh_span rdmesh_field(int request, uint64_t at, uint32_t length) {
    struct rdmesh_span span = {0, (uint32_t)request, at, length, 0};
    return span;
}

/* The 56 bits beside the operation, which conditions compare. */
static inline struct rdmesh_span rdmesh_operand(int request) { return rdmesh_field(request, 8, 7); }
/* The 120 bits that a wide condition compares. */
static inline struct rdmesh_span rdmesh_wide_operand(int request) { return rdmesh_field(request, 0, 15); }
/* The immediate data. */
static inline struct rdmesh_span rdmesh_imm(int request) { return rdmesh_field(request, 20, 4); }
/* The remote address. */
static inline struct rdmesh_span rdmesh_remote(int request) { return rdmesh_field(request, 24, 8); }
/* The comparison value of an atomic operation, or the addend. */
static inline struct rdmesh_span rdmesh_compare(int request) { return rdmesh_field(request, 32, 8); }
/* What a COMPARE_SWAP stores. */
static inline struct rdmesh_span rdmesh_swap(int request) { return rdmesh_field(request, 40, 8); }
/* Address and length (8 and 4 bytes) of an element of its gather list. */
static inline struct rdmesh_span rdmesh_sge(int request, int element) {
    return rdmesh_field(request, 208 + 16 * (uint64_t)element, 12);
}

/* A request. What an operation does not need stays 0. */
struct rdmesh_spec {
    uint32_t op;               /* to the client: RDMESH_WRITE_IMM, RDMESH_SEND_IMM; within own memory: RDMESH_WRITE (a copy), RDMESH_ADD, RDMESH_CAS; RDMESH_NOP */
    uint32_t imm;              /* immediate data, which the client finds in wc.imm_data as it is */
    uint32_t tag;              /* or an argument, RDMESH_U32, which is repeated there */
    uint32_t to;               /* the argument, RDMESH_BUFFER, that a WRITE_IMM writes to */
    uint32_t gather;           /* memory of which the chain fills in address and length (rdmesh_sge) */
    uint32_t is_test;          /* of a NOP: its operand is one of several words of a condition */
    struct rdmesh_span from;   /* data that is sent or copied; where the old value of a CAS or ADD goes */
    struct rdmesh_span rest;   /* more of it, behind it */
    struct rdmesh_span target; /* of what acts within own memory */
    uint64_t compare;          /* or the addend */
    uint64_t swap;
};

/* A request that is placed later, or by a condition. Returns its number. */
RDMESH_API int rdmesh_program_declare(struct rdmesh_program *program, const char *label, const struct rdmesh_spec *spec);
/* Puts it here, behind what was placed before. */
RDMESH_API int rdmesh_program_place(struct rdmesh_program *program, int request);

/* Waits for a message here, once in each lap; with `is_loop`, or for the next iteration of the loop that serves it. */
RDMESH_API int rdmesh_program_on_request(struct rdmesh_program *program, int is_loop);

/* As a request, in the spans of a READ: that READ itself. Its remote address leads the next iteration on. */
#define RDMESH_THIS UINT32_MAX

/* A READ of the chain's own memory. */
struct rdmesh_read {
    const char *label;              /* or NULL */
    uint32_t memory;
    uint32_t offset_argument;       /* or 0 */
    uint64_t offset;
    uint32_t is_filled;             /* an earlier request fills in the address (rdmesh_remote) */
    uint32_t is_soft;               /* a wrong range delivers zeros */
    const struct rdmesh_span *into; /* where its data goes, in turn */
    uint32_t num_into;
    uint32_t request;               /* one of rdmesh_program_read_later, of which only the data's places are said here; or 0 */
};
/* Puts a READ here. Returns its number. */
RDMESH_API int rdmesh_program_read(struct rdmesh_program *program, const struct rdmesh_read *read);
/* A READ that is to be placed later by rdmesh_program_read, whose address an earlier request fills in. Returns its number. */
RDMESH_API int rdmesh_program_read_later(struct rdmesh_program *program, const char *label, int memory);

/* Copies bytes within the chain's own memory. Returns the request's number. */
RDMESH_API int rdmesh_program_copy(struct rdmesh_program *program, struct rdmesh_span to, struct rdmesh_span from);
/* RDMESH_ADD, RDMESH_MIN, RDMESH_MAX or RDMESH_CAS of eight bytes with a number. Returns the request's number. */
RDMESH_API int rdmesh_program_word(struct rdmesh_program *program, enum rdmesh_op op, struct rdmesh_span word,
                                   uint64_t value, uint64_t swap);
/* Fills an argument into a field. */
RDMESH_API int rdmesh_program_fill(struct rdmesh_program *program, int argument, struct rdmesh_span field);

enum rdmesh_comparison {
    RDMESH_EQUAL = 0, /* to one of the values */
    RDMESH_UNEQUAL = 1,
    RDMESH_AT_MOST = 2,
    RDMESH_AT_LEAST = 3,
    RDMESH_LESS = 4,
    RDMESH_MORE = 5,
};

struct rdmesh_value {
    uint32_t argument; /* RDMESH_U56 or RDMESH_U120; or 0 for a constant */
    uint32_t reserved;
    uint64_t low;
    uint64_t high;     /* of 120 bits */
};

struct rdmesh_condition {
    struct rdmesh_span operand; /* 7 bytes, or 15 for RDMESH_EQUAL */
    uint32_t comparison;        /* enum rdmesh_comparison */
    uint32_t num_values;
    const struct rdmesh_value *values;
};

enum rdmesh_effect {
    RDMESH_RUN = 0,       /* is put here, and executed if the conditions hold */
    RDMESH_OTHERWISE = 1, /* is put here, and executed if they do not */
    RDMESH_CANCEL = 2,    /* is placed later, and not executed if they hold */
    RDMESH_STOP_WITH = 3, /* as RDMESH_RUN, and is then the last one */
};

struct rdmesh_outcome {
    uint32_t request;
    uint32_t effect; /* enum rdmesh_effect */
};

/* Requests that depend on conditions, all of which must hold. With `is_in_place` their operands are in all of the requests already. */
RDMESH_API int rdmesh_program_when(struct rdmesh_program *program, const struct rdmesh_condition *conditions,
                                   uint32_t num_conditions, const struct rdmesh_outcome *outcomes,
                                   uint32_t num_outcomes, int is_in_place);

/* A branch: what follows, up to its end, is executed each time the returned request is, whose number this returns. */
RDMESH_API int rdmesh_program_branch(struct rdmesh_program *program, const char *name);
RDMESH_API int rdmesh_program_end_branch(struct rdmesh_program *program);
/* One of these ends each lap, or with `is_all` all of them; to be said before conditions use them. */
RDMESH_API int rdmesh_program_ends(struct rdmesh_program *program, const uint32_t *requests, uint32_t count, int is_all);
RDMESH_API int rdmesh_program_await_end(struct rdmesh_program *program);

/* Ends the program: restores what conditions changed, and takes the next message. */
RDMESH_API int rdmesh_program_rearm(struct rdmesh_program *program);
/* The same in two parts: a branch takes the next message. */
RDMESH_API int rdmesh_program_recycle(struct rdmesh_program *program);
RDMESH_API int rdmesh_program_next_request(struct rdmesh_program *program);

/* The verified chain. The first error names a request, the cause and the remedy. */
RDMESH_API struct rdmesh_chain *rdmesh_program_build(const struct rdmesh_program *program, enum rdmesh_design design);

/* ---- Services: installed chains -------------------------------------------------------------------------------- */

/* A chain in queues, for one client. */
struct rdmesh_service;

/* Memory of the program's that stands for a table or for shared memory. It must be registered from address 0 on. */
struct rdmesh_table {
    const char *name;
    void *address;
    uint64_t length; /* that of the region at least */
    uint32_t key;    /* of ibv_reg_mr_iova(pd, address, length, 0, access), with IBV_ACCESS_LOCAL_WRITE for shared memory */
    uint32_t reserved;
};

struct rdmesh_install {
    const struct rdmesh_service *beside; /* tables and shared memory are this service's: several clients have the same ones */
    uint32_t group;                      /* the number by which `rdmesh chain` names it; 0 for one that is free */
    uint32_t num_tables;
    const struct rdmesh_table *tables;   /* memory of the program's; the rest is allocated */
};

/*
 * Installs a chain: makes its completion queues, queue pairs and memory in the protection domain, fills in the queues,
 * seals them and enables them. It serves from when the program has connected rdmesh_service_qp to the client.
 * `how` may be NULL.
 */
RDMESH_API struct rdmesh_service *rdmesh_chain_install(const struct rdmesh_chain *chain, struct ibv_pd *pd,
                                                       const struct rdmesh_install *how);

/*
 * The queue pairs for the client, which the program connects as it would any other: one of the client's own each. The
 * client's messages go to the first; replies come from all, one for most chains, another for each branch that replies.
 * Their qp_access_flags should be 0: the client then reaches nothing but what the chain writes its messages to. The
 * program may not post to them, nor destroy them. NULL behind the last.
 */
RDMESH_API struct ibv_qp *rdmesh_service_qp(const struct rdmesh_service *service, uint32_t number);

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

enum rdmesh_flags {
    RDMESH_FENCE = 1,
    RDMESH_SIGNALED = 2,
    RDMESH_SOLICITED = 4,
    RDMESH_LOCAL = 1 << 26, /* acts on the program's own memory, and has ended before the next slot is fetched */
    RDMESH_SOFT = 1 << 27,  /* a READ beyond the bounds of its key delivers zeros; of its own memory (LOCAL), one with a wrong key too */
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
/*
 * Stores a value, or replaces it. Returns 0, or -ENOSPC where all buckets of the key are taken, no record is free, another
 * key has the same fingerprint, or the key or the value is too long; rdmesh_chain_error says which.
 */
RDMESH_API int rdmesh_hash_insert(struct rdmesh_hash *hash, const void *key, size_t key_length, const void *value,
                                  size_t length);
/* Returns 1 if the key was there, 0 if not. */
RDMESH_API int rdmesh_hash_remove(struct rdmesh_hash *hash, const void *key, size_t key_length);
/*
 * Records that were replaced or removed are used again. A reply that had begun before may still send one: called too early, the
 * client never gets a wrong value, but RDMESH_TORN, or RDMESH_OTHER_KEY for a key that was there all the time. So it is safe
 * where clients ask again on both, by another way after some tries, and exact where none of their requests from before is open.
 */
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

/* ---- List walk: values in linked lists ------------------------------------------------------------------------- */

enum rdmesh_walk {
    RDMESH_UNROLLED = 0, /* `hops` nodes at most, all of which are read */
    RDMESH_BREAK = 1,    /* `hops` nodes at most; those behind the key are not read */
    RDMESH_LOOP = 2,     /* any number of nodes; a circle of them without the key is walked until the chain is stopped */
};

struct rdmesh_list_shape {
    uint64_t nodes; /* of all lists */
    uint64_t record_size;
    uint32_t walk;  /* enum rdmesh_walk */
    uint32_t hops;
};

RDMESH_API struct rdmesh_chain *rdmesh_list_chain(const struct rdmesh_list_shape *shape, enum rdmesh_design design);

/* The server's lists, in the memory of a service. A list is named by its first node; 0 is an empty one. */
struct rdmesh_list;
RDMESH_API struct rdmesh_list *rdmesh_list_open(const struct rdmesh_list_shape *shape, struct rdmesh_service *service);
/* Puts a node before a list: `head` is the list, and then the new one. */
RDMESH_API int rdmesh_list_push(struct rdmesh_list *lists, uint64_t *head, const void *key, size_t key_length,
                                const void *value, size_t length);
/* Takes the node behind `node` out: `behind` is the one that follows from then on. Nodes are not used again. */
RDMESH_API int rdmesh_list_unlink(struct rdmesh_list *lists, uint64_t node, uint64_t behind);
RDMESH_API void rdmesh_list_close(struct rdmesh_list *lists);

/* The client's part, as that of the hash table. */
struct rdmesh_list_client;
RDMESH_API struct rdmesh_list_client *rdmesh_list_client_new(void);
RDMESH_API int rdmesh_list_request(struct rdmesh_list_client *client, uint64_t head, const void *key,
                                   size_t key_length, uint64_t address, uint32_t rkey, void *message, size_t size,
                                   uint32_t *tag);
RDMESH_API int rdmesh_list_reply(struct rdmesh_list_client *client, uint32_t tag, const void *reply, size_t length,
                                 struct rdmesh_answer *answer);
RDMESH_API void rdmesh_list_client_free(struct rdmesh_list_client *client);

/* ---- Locks ------------------------------------------------------------------------------------------------------ */

/* The chain of one client, whose number is `owner`, from 1 to 2^24-1. The words of the locks are the region "locks". */
RDMESH_API struct rdmesh_chain *rdmesh_lock_chain(uint64_t locks, uint32_t owner, enum rdmesh_design design);

enum { RDMESH_LOCK_MESSAGE = 24, RDMESH_LOCK_REPLY = 32 };

/* Messages of RDMESH_LOCK_MESSAGE bytes; they return their length. The reply is a SEND with the tag as immediate data. */
RDMESH_API int rdmesh_lock_acquire(uint64_t lock, uint32_t tag, void *message, size_t size);
RDMESH_API int rdmesh_lock_release(uint64_t lock, uint64_t lease, uint32_t tag, void *message, size_t size);

enum rdmesh_lock_kind {
    RDMESH_ACQUIRED = 0, /* the client has the lock; `lease` grows with each time */
    RDMESH_HELD = 1,     /* `holder` has it, for `lease`; nothing was done */
    RDMESH_RELEASED = 2,
    RDMESH_NOT_HELD = 3, /* no client has it; nothing was done */
    RDMESH_REFUSED = 4,  /* the message was none of these */
};

struct rdmesh_lock_answer {
    uint32_t kind; /* enum rdmesh_lock_kind */
    uint32_t holder;
    uint64_t lease;
};

RDMESH_API int rdmesh_lock_reply(uint32_t owner, const void *reply, size_t length, struct rdmesh_lock_answer *answer);
/* The server ends a lease that lasts too long: 1 if it lasted, 0 if not. */
RDMESH_API int rdmesh_lock_end(struct rdmesh_service *service, uint64_t lock, uint32_t owner, uint64_t lease);

/* ---- Counters that keep to a bound ------------------------------------------------------------------------------ */

/* Each counter is from 0 to `bound`, at most 2^55-1. Their words are the region "counters". */
RDMESH_API struct rdmesh_chain *rdmesh_counter_chain(uint64_t counters, uint64_t bound, enum rdmesh_design design);

enum { RDMESH_COUNTER_MESSAGE = 19, RDMESH_COUNTER_REPLY = 16 };

/* A message of RDMESH_COUNTER_MESSAGE bytes; returns its length. The reply is a SEND with the tag as immediate data. */
RDMESH_API int rdmesh_counter_add(uint64_t counter, int64_t change, uint32_t tag, void *message, size_t size);

enum rdmesh_counter_kind {
    RDMESH_ADDED = 0,         /* `value` is that before */
    RDMESH_OUT_OF_BOUNDS = 1, /* nothing was changed */
    RDMESH_BUSY = 2,          /* another client was faster, and nothing was changed: ask again */
};

struct rdmesh_counter_answer {
    uint32_t kind; /* enum rdmesh_counter_kind */
    uint32_t reserved;
    uint64_t value;
};

RDMESH_API int rdmesh_counter_reply(const void *reply, size_t length, struct rdmesh_counter_answer *answer);

#ifdef __cplusplus
}
#endif

#endif
