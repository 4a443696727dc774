// idle N: opens N device contexts, each with a connected QP and a region, uses each once and then does nothing until
// its standard input ends.
#include "verbs.h"
#include <stdlib.h>

int main(int argc, char **argv) {
    int count = argc > 1 ? atoi(argv[1]) : 64;
    struct side *sides = calloc((size_t)count + 1, sizeof *sides);
    struct options o = default_options(IBV_QPT_RC);
    for (int i = 0; i < count; i++) side_open(&sides[i], &o);
    for (int i = 0; i + 1 < count; i += 2) {
        connect_sides(&sides[i], &sides[i + 1]);
        struct request r;
        post_send(&sides[i], &request(&r, &sides[i], IBV_WR_RDMA_WRITE, 0, 64)->wr);
        expect_wc(sides[i].cq, IBV_WC_SUCCESS);
    }
    puts("idle");
    fflush(stdout);
    while (getchar() != EOF) {}
    for (int i = 0; i < count; i++) side_close(&sides[i]);
    free(sides);
    return 0;
}
