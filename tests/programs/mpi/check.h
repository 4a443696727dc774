// What the cases share: who we are, checked conditions, and bytes that are known at both ends.
#pragma once
#include <mpi.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

extern int rank, size;

// Ends all ranks with a message that names the failed condition.
#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) fail(__FILE__, __LINE__, #condition);                                                        \
    } while (0)

_Noreturn void fail(const char *file, int line, const char *condition);

// Memory for `len` bytes; ends the program when there is none. The caller frees it.
void *allocate(size_t len);

// The pattern of `seed`.
void fill(void *at, size_t len, uint64_t seed);
bool matches(const void *at, size_t len, uint64_t seed);

// A seed of this sender, receiver and message.
static inline uint64_t seed_of(int from, int to, uint64_t message) {
    return message * 1000003 + (uint64_t)from * 1009 + (uint64_t)to * 31 + 1;
}

static inline int next_rank(void) { return (rank + 1) % size; }
static inline int previous_rank(void) { return (rank + size - 1) % size; }

struct test_case {
    const char *name;
    void (*run)(void);
};

// Each list ends with a case without a name.
extern const struct test_case messages[], collectives[], windows[];

// Runs the cases of lists, of which the last is NULL, or those of them that are named; returns their number. MPI is initialised.
int run_cases(const struct test_case *const *lists, int count, char **names);
