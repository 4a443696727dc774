// Collective operations, with every element checked.
#include "check.h"
#include <stdlib.h>

static const int COUNTS[] = {1, 17, 1000, 50000};
enum { KINDS = sizeof COUNTS / sizeof *COUNTS };

// Element `i` of what rank `from` has for rank `to`.
static int64_t element(int from, int to, int i) { return (int64_t)from * 1000000 + (int64_t)to * 100000 + i; }

static int64_t *numbers(int count) { return allocate(sizeof(int64_t) * (size_t)count); }

static void broadcast(void) {
    for (int k = 0; k < KINDS; k++) {
        for (int root = 0; root < size; root++) {
            int64_t *data = numbers(COUNTS[k]);
            for (int i = 0; i < COUNTS[k]; i++) data[i] = rank == root ? element(root, 0, i) : -1;
            MPI_Bcast(data, COUNTS[k], MPI_INT64_T, root, MPI_COMM_WORLD);
            for (int i = 0; i < COUNTS[k]; i++) CHECK(data[i] == element(root, 0, i));
            free(data);
        }
    }
}

// Sum over all ranks of element(r, 0, i).
static int64_t total(int ranks, int i) { return (int64_t)ranks * (ranks - 1) / 2 * 1000000 + (int64_t)ranks * i; }

static void larger_by_magnitude(void *in, void *inout, int *count, MPI_Datatype *type) {
    int64_t *a = in, *b = inout;
    (void)type;
    for (int i = 0; i < *count; i++)
        if (llabs(a[i]) > llabs(b[i])) b[i] = a[i];
}

static void reduce(void) {
    for (int k = 0; k < KINDS; k++) {
        int n = COUNTS[k];
        int64_t *out = numbers(n), *in = numbers(n);
        for (int i = 0; i < n; i++) out[i] = element(rank, 0, i);
        MPI_Reduce(out, in, n, MPI_INT64_T, MPI_SUM, size - 1, MPI_COMM_WORLD);
        for (int i = 0; rank == size - 1 && i < n; i++) CHECK(in[i] == total(size, i));
        MPI_Allreduce(out, in, n, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
        for (int i = 0; i < n; i++) CHECK(in[i] == total(size, i));
        MPI_Allreduce(out, in, n, MPI_INT64_T, MPI_MAX, MPI_COMM_WORLD);
        for (int i = 0; i < n; i++) CHECK(in[i] == element(size - 1, 0, i));
        MPI_Scan(out, in, n, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
        for (int i = 0; i < n; i++) CHECK(in[i] == total(rank + 1, i));
        MPI_Exscan(out, in, n, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
        for (int i = 0; rank > 0 && i < n; i++) CHECK(in[i] == total(rank, i));
        MPI_Allreduce(MPI_IN_PLACE, out, n, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
        for (int i = 0; i < n; i++) CHECK(out[i] == total(size, i));
        free(out);
        free(in);
    }
}

static void own_operation(void) {
    int64_t mine[3] = {rank % 2 ? -rank : rank, -1 - rank, 5}, result[3];
    MPI_Op op;
    MPI_Op_create(larger_by_magnitude, 1, &op);
    MPI_Allreduce(mine, result, 3, MPI_INT64_T, op, MPI_COMM_WORLD);
    MPI_Op_free(&op);
    CHECK(llabs(result[0]) == size - 1);
    CHECK(result[1] == -size);
    CHECK(result[2] == 5);
}

static void reduce_scatter(void) {
    for (int k = 0; k < KINDS; k++) {
        int n = COUNTS[k];
        int64_t *out = numbers(n * size), *in = numbers(n);
        for (int i = 0; i < n * size; i++) out[i] = element(rank, 0, i);
        MPI_Reduce_scatter_block(out, in, n, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
        for (int i = 0; i < n; i++) CHECK(in[i] == total(size, rank * n + i));
        free(out);
        free(in);
    }
}

static void gather_scatter(void) {
    for (int k = 0; k < KINDS; k++) {
        int n = COUNTS[k];
        int64_t *one = numbers(n), *all = numbers(n * size);
        for (int i = 0; i < n; i++) one[i] = element(rank, 0, i);
        MPI_Gather(one, n, MPI_INT64_T, all, n, MPI_INT64_T, 0, MPI_COMM_WORLD);
        for (int i = 0; rank == 0 && i < n * size; i++) CHECK(all[i] == element(i / n, 0, i % n));
        MPI_Allgather(one, n, MPI_INT64_T, all, n, MPI_INT64_T, MPI_COMM_WORLD);
        for (int i = 0; i < n * size; i++) CHECK(all[i] == element(i / n, 0, i % n));
        MPI_Scatter(all, n, MPI_INT64_T, one, n, MPI_INT64_T, size - 1, MPI_COMM_WORLD);
        for (int i = 0; i < n; i++) CHECK(one[i] == element(rank, 0, i));
        free(one);
        free(all);
    }
}

// Rank r has 100 * (r + 1) elements, with a gap of 5 between those of two ranks.
static void of_unequal_size(void) {
    int *counts = allocate(sizeof(int) * (size_t)size), *places = allocate(sizeof(int) * (size_t)size);
    int place = 0;
    for (int r = 0; r < size; r++) {
        counts[r] = 100 * (r + 1);
        places[r] = place;
        place += counts[r] + 5;
    }
    int64_t *one = numbers(counts[rank]), *all = numbers(place);
    for (int i = 0; i < counts[rank]; i++) one[i] = element(rank, 0, i);
    for (int i = 0; i < place; i++) all[i] = -7;
    MPI_Allgatherv(one, counts[rank], MPI_INT64_T, all, counts, places, MPI_INT64_T, MPI_COMM_WORLD);
    for (int r = 0; r < size; r++) {
        for (int i = 0; i < counts[r]; i++) CHECK(all[places[r] + i] == element(r, 0, i));
        for (int i = 0; i < 5; i++) CHECK(all[places[r] + counts[r] + i] == -7);
    }
    for (int i = 0; i < counts[rank]; i++) one[i] = -1;
    MPI_Scatterv(all, counts, places, MPI_INT64_T, one, counts[rank], MPI_INT64_T, 0, MPI_COMM_WORLD);
    for (int i = 0; i < counts[rank]; i++) CHECK(one[i] == element(rank, 0, i));
    MPI_Gatherv(one, counts[rank], MPI_INT64_T, all, counts, places, MPI_INT64_T, 0, MPI_COMM_WORLD);
    free(one);
    free(all);
    free(counts);
    free(places);
}

static void all_to_all(void) {
    for (int k = 0; k < KINDS; k++) {
        int n = COUNTS[k];
        int64_t *out = numbers(n * size), *in = numbers(n * size);
        for (int i = 0; i < n * size; i++) out[i] = element(rank, i / n, i % n);
        MPI_Alltoall(out, n, MPI_INT64_T, in, n, MPI_INT64_T, MPI_COMM_WORLD);
        for (int i = 0; i < n * size; i++) CHECK(in[i] == element(i / n, rank, i % n));
        free(out);
        free(in);
    }
}

// Several at once, each finished while others go on.
static void nonblocking(void) {
    enum { N = 20000 };
    int64_t *sum = numbers(N), *copy = numbers(N), *out = numbers(N * size), *in = numbers(N * size);
    MPI_Request requests[4];
    for (int i = 0; i < N; i++) sum[i] = element(rank, 0, i);
    for (int i = 0; i < N; i++) copy[i] = rank == 1 ? element(1, 0, i) : -1;
    for (int i = 0; i < N * size; i++) out[i] = element(rank, i / N, i % N);
    MPI_Iallreduce(MPI_IN_PLACE, sum, N, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD, &requests[0]);
    MPI_Ibcast(copy, N, MPI_INT64_T, 1, MPI_COMM_WORLD, &requests[1]);
    MPI_Ialltoall(out, N, MPI_INT64_T, in, N, MPI_INT64_T, MPI_COMM_WORLD, &requests[2]);
    MPI_Ibarrier(MPI_COMM_WORLD, &requests[3]);
    MPI_Waitall(4, requests, MPI_STATUSES_IGNORE);
    for (int i = 0; i < N; i++) CHECK(sum[i] == total(size, i));
    for (int i = 0; i < N; i++) CHECK(copy[i] == element(1, 0, i));
    for (int i = 0; i < N * size; i++) CHECK(in[i] == element(i / N, rank, i % N));
    free(sum);
    free(copy);
    free(out);
    free(in);
}

// Communicators of a part of the ranks, in reverse order, and a copy of the whole one.
static void communicators(void) {
    MPI_Comm half, copy;
    int half_rank, half_size, sum = 0;
    MPI_Comm_split(MPI_COMM_WORLD, rank % 2, -rank, &half);
    MPI_Comm_rank(half, &half_rank);
    MPI_Comm_size(half, &half_size);
    MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, half);
    int expected = 0;
    for (int r = rank % 2; r < size; r += 2) expected += r;
    CHECK(sum == expected);
    CHECK(half_rank == half_size - 1 - rank / 2);
    MPI_Comm_dup(MPI_COMM_WORLD, &copy);
    MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, copy);
    CHECK(sum == size * (size - 1) / 2);
    MPI_Comm_free(&half);
    MPI_Comm_free(&copy);
}

const struct test_case collectives[] = {
    {"broadcast", broadcast},
    {"reduce", reduce},
    {"own-operation", own_operation},
    {"reduce-scatter", reduce_scatter},
    {"gather-scatter", gather_scatter},
    {"of-unequal-size", of_unequal_size},
    {"all-to-all", all_to_all},
    {"nonblocking-collectives", nonblocking},
    {"communicators", communicators},
    {0},
};
