// Checks of the chain API's test programs.
#pragma once
#include "connect.h"
#include <rdmesh_chain.h>
#include <stdbool.h>
#include <time.h>

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) die("%s:%d: %s: %s", __FILE__, __LINE__, #condition, rdmesh_chain_error());                   \
    } while (0)

// The last call failed, and its text has this in it.
#define CHECK_ERROR(call, part)                                                                                        \
    do {                                                                                                               \
        long long result = (long long)(call);                                                                          \
        if (!strstr(rdmesh_chain_error(), part))                                                                       \
            die("%s:%d: %s = %lld, and the text is `%s`", __FILE__, __LINE__, #call, result, rdmesh_chain_error());     \
    } while (0)

static inline struct ibv_wc poll_one(struct ibv_cq *cq) {
    struct ibv_wc wc;
    for (time_t end = time(NULL) + 20; ibv_poll_cq(cq, 1, &wc) == 0;) {
        if (time(NULL) > end) die("no completion");
    }
    return wc;
}
