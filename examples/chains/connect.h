/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * How server and client of an example connect: each tells the other number and address of its queue pair, as a line of
 * text over TCP. Nothing of it is particular to chains.
 */
#pragma once
#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <inttypes.h>
#include <netdb.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { GID_INDEX = 1 }; /* the IPv4 address */

__attribute__((format(printf, 1, 2), noreturn)) static inline void die(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    exit(1);
}

static inline struct ibv_context *open_device(void) {
    struct ibv_device **devices = ibv_get_device_list(NULL);
    struct ibv_context *context = devices && devices[0] ? ibv_open_device(devices[0]) : NULL;
    if (!context) die("there is no RDMA device: is this run by `rdmesh run`?");
    ibv_free_device_list(devices);
    return context;
}

static inline int listen_at(uint16_t port) {
    struct sockaddr_in any = {.sin_family = AF_INET, .sin_port = htons(port)};
    int one = 1, listener = socket(AF_INET, SOCK_STREAM, 0);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(listener, (struct sockaddr *)&any, sizeof any) != 0 || listen(listener, 8) != 0) die("port %u: %s", port, strerror(errno));
    return listener;
}

static inline int connect_to(const char *host, const char *port) {
    struct addrinfo hints = {.ai_family = AF_INET, .ai_socktype = SOCK_STREAM}, *found = NULL;
    int stream = getaddrinfo(host, port, &hints, &found) == 0 ? socket(AF_INET, SOCK_STREAM, 0) : -1;
    if (stream < 0 || connect(stream, found->ai_addr, found->ai_addrlen) != 0) die("%s port %s: %s", host, port, strerror(errno));
    freeaddrinfo(found);
    return stream;
}

/* Exchanges addresses with the other end, and brings the queue pair to RTS. The peer gets no access to memory but `access`. */
static inline void join(int stream, struct ibv_qp *qp, int access) {
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = (unsigned)access};
    union ibv_gid gid;
    if (ibv_query_gid(qp->context, 1, GID_INDEX, &gid) != 0) die("ibv_query_gid");
    if (ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) != 0) die("INIT");

    dprintf(stream, "%" PRIx32 " %016" PRIx64 "%016" PRIx64 "\n", qp->qp_num, be64toh(gid.global.subnet_prefix), be64toh(gid.global.interface_id));
    char line[64] = "";
    for (size_t at = 0; at < sizeof line - 1 && read(stream, &line[at], 1) == 1 && line[at] != '\n'; at++) {}
    uint64_t high, low;
    attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .max_dest_rd_atomic = 16, .min_rnr_timer = 1,
                                .ah_attr = {.is_global = 1, .grh = {.sgid_index = GID_INDEX, .hop_limit = 64}, .port_num = 1}};
    if (sscanf(line, "%" SCNx32 " %16" SCNx64 "%16" SCNx64, &attr.dest_qp_num, &high, &low) != 3) die("the other end said `%s`", line);
    attr.ah_attr.grh.dgid.global.subnet_prefix = htobe64(high);
    attr.ah_attr.grh.dgid.global.interface_id = htobe64(low);
    if (ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER) != 0) die("RTR");

    attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 16};
    if (ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC) != 0) die("RTS");
    /* Both ends are ready when each has said so. */
    char ready = '.';
    if (write(stream, &ready, 1) != 1 || read(stream, &ready, 1) != 1) die("the other end has gone");
}
