// watched ADDRESS: connects a queue pair to some queue pair at ADDRESS, says so, and waits for an asynchronous event, which it
// prints with the state that the queue pair is in then. Says `refused` and the error where the connection is refused.
#include "verbs.h"
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <string.h>

enum { TIMEOUT_MS = 60000, SOME_QPN = 0x1234 };

static int to_rtr(struct side *s, const char *address) {
    struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = SOME_QPN};
    attr.max_dest_rd_atomic = 1;
    attr.ah_attr.is_global = 1;
    attr.ah_attr.port_num = 1;
    attr.ah_attr.grh.sgid_index = s->options.gid_index;
    attr.ah_attr.grh.hop_limit = 64;
    attr.ah_attr.grh.dgid.raw[10] = attr.ah_attr.grh.dgid.raw[11] = 0xff;
    CHECK(inet_pton(AF_INET, address, attr.ah_attr.grh.dgid.raw + 12) == 1, "%s is no address", address);
    return ibv_modify_qp(s->qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                                           IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
}

int main(int argc, char **argv) {
    setbuf(stdout, NULL);
    CHECK(argc == 2, "usage: watched ADDRESS");
    struct options options = default_options(IBV_QPT_RC);
    struct side s;
    side_open(&s, &options);
    int error = to_rtr(&s, argv[1]);
    if (error) {
        printf("refused: %s\n", strerror(error));
        return 0;
    }
    printf("connected\n");
    struct pollfd waited = {.fd = s.context->async_fd, .events = POLLIN};
    CHECK(poll(&waited, 1, TIMEOUT_MS) == 1, "no event");
    struct ibv_async_event event;
    CHECK(ibv_get_async_event(s.context, &event) == 0);
    struct ibv_qp_attr attr;
    struct ibv_qp_init_attr init;
    CHECK(event.element.qp == s.qp && ibv_query_qp(s.qp, &attr, IBV_QP_STATE, &init) == 0);
    printf("%s, state %d\n", ibv_event_type_str(event.event_type), attr.qp_state);
    ibv_ack_async_event(&event);
    side_close(&s);
    return 0;
}
