// What the MPI programs share: data that can be checked, and the run of cases.
#include "check.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int rank, size;

void fail(const char *file, int line, const char *condition) {
    fprintf(stderr, "rank %d: %s:%d: not so: %s\n", rank, file, line, condition);
    MPI_Abort(MPI_COMM_WORLD, 1);
    abort();
}

void *allocate(size_t len) {
    void *memory = malloc(len ? len : 1);
    CHECK(memory);
    return memory;
}

static uint64_t scramble(uint64_t x) {
    x ^= x >> 31;
    x *= 0x9E3779B97F4A7C15;
    return x ^ x >> 29;
}

void fill(void *at, size_t len, uint64_t seed) {
    uint8_t *bytes = at;
    for (size_t i = 0; i < len; i += 8) {
        uint64_t word = scramble(seed + i);
        memcpy(bytes + i, &word, len - i < 8 ? len - i : 8);
    }
}

bool matches(const void *at, size_t len, uint64_t seed) {
    const uint8_t *bytes = at;
    for (size_t i = 0; i < len; i += 8) {
        uint64_t word = scramble(seed + i);
        if (memcmp(bytes + i, &word, len - i < 8 ? len - i : 8) != 0) return false;
    }
    return true;
}

static bool is_wanted(const char *name, int count, char **names) {
    if (count == 0) return true;
    for (int i = 0; i < count; i++)
        if (strcmp(names[i], name) == 0) return true;
    return false;
}

int run_cases(const struct test_case *const *lists, int count, char **names) {
    int held = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    CHECK(size >= 2);
    for (; *lists; lists++) {
        for (const struct test_case *c = *lists; c->name; c++) {
            if (!is_wanted(c->name, count, names)) continue;
            MPI_Barrier(MPI_COMM_WORLD);
            double begin = MPI_Wtime();
            c->run();
            MPI_Barrier(MPI_COMM_WORLD);
            if (rank == 0) printf("%s: holds %.0f\n", c->name, (MPI_Wtime() - begin) * 1e3);
            fflush(stdout);
            held++;
        }
    }
    return held;
}
