// Registers memory that was never written, whose bytes a checker of memory calls uninitialised, and gives it back.
#include "verbs.h"
#include <stdlib.h>

enum { SIZES = 4 };

int main(void) {
    static const size_t sizes[SIZES] = {100, 5000, 70000, 3000000};
    struct ibv_context *context = open_device();
    struct ibv_pd *pd = ibv_alloc_pd(context);
    struct ibv_mr *mrs[SIZES];
    char *memory[SIZES];
    for (int i = 0; i < SIZES; i++) {
        memory[i] = malloc(sizes[i]);
        mrs[i] = ibv_reg_mr(pd, memory[i], sizes[i], IBV_ACCESS_LOCAL_WRITE);
        CHECK(mrs[i]);
    }
    for (int i = 0; i < SIZES; i++) {
        ibv_dereg_mr(mrs[i]);
        free(memory[i]);
    }
    ibv_dealloc_pd(pd);
    ibv_close_device(context);
    puts("registered");
    return 0;
}
