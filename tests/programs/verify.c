// verify CASE: runs one case; verify --list names them all.
#include "cases.h"
#include <stdio.h>
#include <string.h>

#define CASE(name) {#name, case_##name}

static const struct {
    const char *name;
    int (*run)(void);
} CASES[] = {
    CASE(rc_opcodes),          CASE(uc_opcodes),           CASE(ud_messages),
    CASE(scatter_gather),      CASE(inline_data),          CASE(unsignaled),
    CASE(fence),               CASE(atomics),              CASE(atomic_contention),
    CASE(send_with_invalidate), CASE(shared_receive_queue), CASE(random_soak),
    CASE(big_region),          CASE(huge_pages),           CASE(shared_mapping),
    CASE(odd_memory),          CASE(read_only_memory),     CASE(overlapping_regions),
    CASE(register_often),      CASE(unmapped_and_reused),  CASE(deregister_in_use),
    CASE(fork_isolation),      CASE(fork_child_opens_device), CASE(fork_meets_commands), CASE(neighbour_writers),
    CASE(receiver_not_ready),  CASE(receiver_ready_late),  CASE(remote_access),
    CASE(local_protection),    CASE(short_receive),        CASE(bad_receive_key),
    CASE(nobody_there),        CASE(flush_on_error_state), CASE(unreliable_drops),
    CASE(reuse_after_error),   CASE(wrong_state),          CASE(destroyed_peer),
    CASE(completion_channel),  CASE(solicited_only),       CASE(srq_limit),
    CASE(cq_overflow),         CASE(last_wqe_reached),     CASE(access_error_event),
    CASE(threads),             CASE(shared_context_threads), CASE(many_contexts),
};

int main(int argc, char **argv) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc != 2) return 2;
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        if (strcmp(argv[1], "--list") == 0) {
            puts(CASES[i].name);
        } else if (strcmp(argv[1], CASES[i].name) == 0) {
            return CASES[i].run();
        }
    }
    return strcmp(argv[1], "--list") == 0 ? 0 : 2;
}
