/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Leases: a device outlives its program for a term. Its queue pairs, completion queues, memory regions and chains go on as if
 * the program were there, also after SIGKILL, and another process of the same endpoint may take it over.
 *
 * Everything that the device has stays charged to the endpoint. It ends with its term, which begins when the last process that
 * uses it has ended; with its endpoint; by `rdmesh linger end`; and when the program closes the device itself.
 *
 * The functions are in librdmesh.so, which `rdmesh run` loads into the program: nothing needs to be linked. They are weak
 * symbols: where the library is absent they are NULL. Those that return int return 0, or -1 with errno set.
 */
#ifndef RDMESH_LINGER_H
#define RDMESH_LINGER_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

#define RDMESH_API __attribute__((weak))

/* A secret: who has it may take the device over, in the endpoint where it was given. */
struct rdmesh_token {
	uint8_t bytes[16];
};

/*
 * Lets the device whose command descriptor this is (`ibv_context.cmd_fd`) outlive the program for so long. Called again, it
 * changes the term; the token stays. `token` may be NULL.
 *
 * Errors: ENOMEM where the term exceeds the endpoint's limit (`rdmesh run --max-linger`); EOPNOTSUPP where a memory region has
 * private pages, which go with their process. From then on ibv_reg_mr fails with EOPNOTSUPP for such memory; memory of
 * rdmesh_malloc() never is. Connections that rdma_cm made are told to the peer as ended all the same.
 */
RDMESH_API int rdmesh_linger(int cmd_fd, uint64_t milliseconds, struct rdmesh_token *token);

/* Lets the device end with its program again. */
RDMESH_API int rdmesh_linger_give_up(int cmd_fd);

/* A device that was taken over. A child of fork() has no part in it. */
struct rdmesh_taken;

struct rdmesh_taken_info {
	uint64_t term_ms; /* the term */
	uint64_t left_ms; /* what was left of it */
	uint32_t device;  /* its number, as `rdmesh linger ls` shows it */
	uint32_t mrs, cqs, qps;
};

/* Where a ring lies in the queue memory, for mmap(); a length of 0 where there is none. */
struct rdmesh_taken_ring {
	uint64_t offset, len;
};

struct rdmesh_taken_region {
	uint32_t mr, key, pd, access;
	uint64_t iova, len;
	uint64_t offset; /* of its first byte in the arena; RDMESH_ELSEWHERE where it is not one piece of it */
};
#define RDMESH_ELSEWHERE UINT64_MAX

struct rdmesh_taken_cq {
	uint32_t cq, cqe;
	struct rdmesh_taken_ring ring;
};

struct rdmesh_taken_qp {
	uint32_t qp, qpn, state, dest_qpn; /* state: enum ibv_qp_state */
	struct rdmesh_taken_ring send, receive;
};

/* Takes the device over; its term stands still until this process has closed it, or has ended. NULL with errno EACCES where there
 * is no such lease in this endpoint. */
RDMESH_API struct rdmesh_taken *rdmesh_take_over(const struct rdmesh_token *token);

RDMESH_API void rdmesh_taken_info(const struct rdmesh_taken *taken, struct rdmesh_taken_info *info);

/*
 * Descriptors for mmap(): the memory in which all its rings lie, laid out as rdma_user_rxe.h says, and the arena in which its
 * regions lie. They are the caller's to close. -1 with ENOENT where the lease has no arena.
 */
RDMESH_API int rdmesh_taken_queues(const struct rdmesh_taken *taken);
RDMESH_API int rdmesh_taken_arena(const struct rdmesh_taken *taken);

/* At most `count` of its objects from handle `from` on, in the order of their handles. Returns how many there are, or -1. */
RDMESH_API ssize_t rdmesh_taken_regions(const struct rdmesh_taken *taken, uint32_t from, struct rdmesh_taken_region *rows, size_t count);
RDMESH_API ssize_t rdmesh_taken_cqs(const struct rdmesh_taken *taken, uint32_t from, struct rdmesh_taken_cq *rows, size_t count);
RDMESH_API ssize_t rdmesh_taken_qps(const struct rdmesh_taken *taken, uint32_t from, struct rdmesh_taken_qp *rows, size_t count);

/* Stops, resumes and ends a group of its managed queues. */
RDMESH_API int rdmesh_taken_chain_stop(const struct rdmesh_taken *taken, uint32_t group);
RDMESH_API int rdmesh_taken_chain_resume(const struct rdmesh_taken *taken, uint32_t group);
RDMESH_API int rdmesh_taken_chain_kill(const struct rdmesh_taken *taken, uint32_t group);

/* Changes the term, or gives the lease up: the device ends when it is closed. */
RDMESH_API int rdmesh_taken_extend(const struct rdmesh_taken *taken, uint64_t milliseconds);
RDMESH_API int rdmesh_taken_give_up(const struct rdmesh_taken *taken);

/* Lets go of the device, whose term begins unless its lease was given up. NULL is ignored. */
RDMESH_API void rdmesh_taken_close(struct rdmesh_taken *taken);

#ifdef __cplusplus
}
#endif

#endif
