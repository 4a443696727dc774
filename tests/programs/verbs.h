// What the test programs share: a device side (context, PD, CQ, QP, buffer) and how to join two of them.
#pragma once
#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

// Ends the program with a message that names the failed condition.
#define CHECK(condition, ...)                                                                                          \
    do {                                                                                                               \
        if (!(condition)) fail(__FILE__, __LINE__, #condition, " " __VA_ARGS__);                                        \
    } while (0)

void fail(const char *file, int line, const char *condition, const char *format, ...) __attribute__((format(printf, 4, 5), noreturn));

struct options {
    enum ibv_qp_type type;
    uint32_t depth;     // work requests of each queue
    uint32_t cqe;       // completion queue entries; 0 for twice the depth
    uint32_t sges;      // scatter/gather elements
    uint32_t inline_len;
    size_t len;         // bytes of the buffer
    bool events;        // a completion channel
    bool srq;           // receive through a shared receive queue
    bool all_signaled;  // sq_sig_all
    uint8_t timeout;    // local ACK timeout, 4.096 us * 2^timeout
    uint8_t retries;
    uint8_t rnr_retries;
    uint8_t gid_index;  // of the address that it speaks from
    int access;         // of the QP and of the region; 0 for all
};

struct options default_options(enum ibv_qp_type type);

// One end: everything that a connection needs.
struct side {
    struct options options;
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_comp_channel *channel;
    struct ibv_cq *cq;
    struct ibv_srq *srq;
    struct ibv_qp *qp;
    struct ibv_ah *ah; // to the other end, for UD
    char *buffer;
    struct ibv_mr *mr;
    union ibv_gid gid;
    uint32_t remote_qpn;
    uint64_t remote_addr;
    uint32_t remote_rkey;
};

// What the other end must be told.
struct address {
    union ibv_gid gid;
    uint32_t qpn;
    uint32_t rkey;
    uint64_t addr;
};

struct ibv_context *open_device(void);
void side_open(struct side *side, const struct options *options);
void side_open_qp(struct side *side); // a fresh QP on an open side; the old one is destroyed
void side_close(struct side *side);
struct address side_address(const struct side *side);
void side_connect(struct side *side, const struct address *remote);
void connect_sides(struct side *a, struct side *b);

// Opens and joins two ends with the same options.
void open_pair(struct side *a, struct side *b, const struct options *options);
void close_pair(struct side *a, struct side *b);

int try_post_send(struct side *side, struct ibv_send_wr *wr);
void post_send(struct side *side, struct ibv_send_wr *wr);
void post_recv(struct side *side, uint64_t wr_id, const struct ibv_sge *sges, int count);
// Waits for a completion at most `seconds`.
struct ibv_wc poll_one(struct ibv_cq *cq, double seconds);
struct ibv_wc expect_wc(struct ibv_cq *cq, enum ibv_wc_status status);
void expect_nothing(struct ibv_cq *cq);

// A send work request over one stretch of the side's buffer, to the same stretch of the remote one.
struct request {
    struct ibv_sge sge;
    struct ibv_send_wr wr;
};
struct request *request(struct request *r, struct side *side, enum ibv_wr_opcode opcode, size_t offset, size_t len);

double now_seconds(void);
void fill(void *at, size_t len, uint64_t seed);
bool matches(const void *at, size_t len, uint64_t seed);
bool all_zero(const void *at, size_t len);
