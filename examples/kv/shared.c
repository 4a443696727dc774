#define _GNU_SOURCE
#include "shared.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

void kv_print_gid(const union ibv_gid *gid, char text[33]) {
    for (int i = 0; i < 16; i++) sprintf(text + 2 * i, "%02x", gid->raw[i]);
}

int kv_parse_end(const char *gid, const char *qpn, const char *psn, struct kv_end *end) {
    if (strlen(gid) != 32) return 0;
    for (int i = 0; i < 16; i++) {
        unsigned byte;
        if (sscanf(gid + 2 * i, "%2x", &byte) != 1) return 0;
        end->gid.raw[i] = (uint8_t)byte;
    }
    return sscanf(qpn, "%u", &end->qpn) == 1 && sscanf(psn, "%u", &end->psn) == 1;
}

struct ibv_context *kv_open_device(void) {
    int count = 0;
    struct ibv_device **devices = ibv_get_device_list(&count);
    struct ibv_context *context = devices && count ? ibv_open_device(devices[0]) : NULL;
    if (devices) ibv_free_device_list(devices);
    return context;
}

int kv_own_end(struct ibv_qp *qp, struct kv_end *end) {
    end->qpn = qp->qp_num;
    if (getrandom(&end->psn, sizeof end->psn, 0) != sizeof end->psn) return errno;
    end->psn &= 0xffffff;
    return ibv_query_gid(qp->context, 1, KV_GID_INDEX, &end->gid) ? errno : 0;
}

int kv_connect(struct ibv_qp *qp, uint32_t psn, const struct kv_end *peer, unsigned access) {
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = access};
    int error = ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
    if (error) return error;
    attr = (struct ibv_qp_attr){
        .qp_state = IBV_QPS_RTR,
        .path_mtu = IBV_MTU_1024,
        .dest_qp_num = peer->qpn,
        .rq_psn = peer->psn,
        .max_dest_rd_atomic = 1,
        .min_rnr_timer = 1,
        .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = peer->gid, .sgid_index = KV_GID_INDEX, .hop_limit = 64}},
    };
    error = ibv_modify_qp(qp, &attr,
                          IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
                              IBV_QP_MIN_RNR_TIMER);
    if (error) return error;
    attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .sq_psn = psn, .max_rd_atomic = 1};
    return ibv_modify_qp(qp, &attr,
                         IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC);
}
