// linger TOKEN: takes a device over that has outlived its program, led line by line through its standard input.
//
// It prints "taken MRS CQS QPS"; then it obeys:
//   check SEED LEN    the pattern at the beginning of the first region: "match" or "differ"
//   poll              takes the completions that its first completion queue has: "polled COUNT"
//   extend MS         "done" or "errno N"
//   close             lets go of it: "done"
//   end               gives it up, and lets go of it: "done"
#include "../../include/rdmesh_linger.h"
#include "verbs.h"
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static struct rdmesh_taken *taken;

static void check(uint64_t seed, size_t len) {
    struct rdmesh_taken_region region;
    CHECK(rdmesh_taken_regions(taken, 0, &region, 1) == 1);
    CHECK(region.offset != RDMESH_ELSEWHERE && len <= region.len);
    int arena = rdmesh_taken_arena(taken);
    CHECK(arena >= 0);
    void *bytes = mmap(NULL, region.len, PROT_READ, MAP_SHARED, arena, (off_t)region.offset);
    CHECK(bytes != MAP_FAILED);
    puts(matches(bytes, len, seed) ? "match" : "differ");
    munmap(bytes, region.len);
    close(arena);
}

// A completion queue as rdma_user_rxe.h has it: indices in cache lines of their own, then entries of 48 bytes.
static void poll_queue(void) {
    enum { PRODUCER = 128, CONSUMER = 256 };
    struct rdmesh_taken_cq cq;
    CHECK(rdmesh_taken_cqs(taken, 0, &cq, 1) == 1);
    int queues = rdmesh_taken_queues(taken);
    CHECK(queues >= 0);
    char *ring = mmap(NULL, cq.ring.len, PROT_READ | PROT_WRITE, MAP_SHARED, queues, (off_t)cq.ring.offset);
    CHECK(ring != MAP_FAILED);
    uint32_t produced = atomic_load_explicit((_Atomic uint32_t *)(ring + PRODUCER), memory_order_acquire);
    uint32_t consumed = atomic_exchange((_Atomic uint32_t *)(ring + CONSUMER), produced);
    printf("polled %u\n", (produced - consumed) & cq.cqe);
    munmap(ring, cq.ring.len);
    close(queues);
}

static bool obey(const char *line) {
    unsigned long long a = 0, b = 0;
    if (sscanf(line, "check %llu %llu", &a, &b) == 2) {
        check(a, b);
        return true;
    }
    if (strcmp(line, "poll") == 0) {
        poll_queue();
        return true;
    }
    if (sscanf(line, "extend %llu", &a) == 1) {
        if (rdmesh_taken_extend(taken, a)) printf("errno %d\n", errno);
        else puts("done");
        return true;
    }
    CHECK(strcmp(line, "close") == 0 || strcmp(line, "end") == 0, "unknown command: %s", line);
    if (strcmp(line, "end") == 0) CHECK(rdmesh_taken_give_up(taken) == 0);
    rdmesh_taken_close(taken);
    puts("done");
    return false;
}

int main(int argc, char **argv) {
    struct rdmesh_token token;
    struct rdmesh_taken_info info;
    setvbuf(stdout, NULL, _IOLBF, 0);
    CHECK(argc == 2 && strlen(argv[1]) == 2 * sizeof token);
    for (size_t i = 0; i < sizeof token.bytes; i++) CHECK(sscanf(argv[1] + 2 * i, "%2hhx", &token.bytes[i]) == 1);
    taken = rdmesh_take_over(&token);
    if (!taken) {
        printf("errno %d\n", errno);
        return 1;
    }
    rdmesh_taken_info(taken, &info);
    CHECK(info.left_ms <= info.term_ms);
    printf("taken %u %u %u\n", info.mrs, info.cqs, info.qps);
    char line[256];
    while (fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\n")] = 0;
        if (!obey(line)) return 0;
    }
    return 0;
}
