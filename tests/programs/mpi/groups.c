// groups [CASE...]: collective operations of much data, in each form that MPI allows. Rank 0 prints "all N cases hold".
#include "check.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Some segments of a chain, and a rest.
enum { LONG = 300001, SHORT = 30 };

static int64_t *numbers(int count) { return allocate(sizeof(int64_t) * (size_t)count); }

// Element `i` of what rank `from` has for rank `to`.
static int64_t element(int from, int to, int i) { return (int64_t)from * 100000000 + (int64_t)to * 10000000 + i; }

// From each root, at which the data is of another datatype than elsewhere.
static void two_types(void) {
    MPI_Datatype thousand;
    MPI_Type_contiguous(1000, MPI_INT64_T, &thousand);
    MPI_Type_commit(&thousand);
    enum { COUNT = 300000 };
    int64_t *data = numbers(COUNT);
    for (int root = 0; root < size; root++) {
        for (int i = 0; i < COUNT; i++) data[i] = rank == root ? element(root, 1, i) : -1;
        if (rank == root) MPI_Bcast(data, COUNT / 1000, thousand, root, MPI_COMM_WORLD);
        else MPI_Bcast(data, COUNT, MPI_INT64_T, root, MPI_COMM_WORLD);
        for (int i = 0; i < COUNT; i++) CHECK(data[i] == element(root, 1, i));
    }
    MPI_Type_free(&thousand);
    free(data);
}

// Data with gaps at one rank, and in one piece at the others.
static void gaps(void) {
    enum { COUNT = 200000 };
    MPI_Datatype every_second;
    MPI_Type_vector(COUNT, 1, 2, MPI_INT64_T, &every_second);
    MPI_Type_commit(&every_second);
    int64_t *data = numbers(2 * COUNT);
    for (int gap = 0; gap < size; gap++) {
        int stride = rank == gap ? 2 : 1;
        for (int i = 0; i < 2 * COUNT; i++) data[i] = -5;
        for (int i = 0; rank == 0 && i < COUNT; i++) data[i * stride] = element(0, gap, i);
        MPI_Bcast(data, rank == gap ? 1 : COUNT, rank == gap ? every_second : MPI_INT64_T, 0, MPI_COMM_WORLD);
        for (int i = 0; i < COUNT; i++) CHECK(data[i * stride] == element(0, gap, i));
        for (int i = 0; rank == gap && i < COUNT; i++) CHECK(data[2 * i + 1] == -5);
    }
    MPI_Type_free(&every_second);
    free(data);
}

static int64_t sum(int ranks, int i) { return (int64_t)ranks * (ranks - 1) / 2 * 100000000 + (int64_t)ranks * i; }

static void in_place(void) {
    int64_t *one = numbers(LONG), *all = numbers(LONG * size);
    for (int root = 0; root < size; root++) {
        for (int i = 0; i < LONG; i++) one[i] = element(rank, 0, i);
        MPI_Reduce(rank == root ? MPI_IN_PLACE : one, one, LONG, MPI_INT64_T, MPI_SUM, root, MPI_COMM_WORLD);
        for (int i = 0; i < LONG; i++) CHECK(one[i] == (rank == root ? sum(size, i) : element(rank, 0, i)));
    }
    for (int i = 0; i < LONG; i++) one[i] = element(rank, 0, i);
    MPI_Allreduce(MPI_IN_PLACE, one, LONG, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
    for (int i = 0; i < LONG; i++) CHECK(one[i] == sum(size, i));
    for (int i = 0; i < LONG; i++) all[rank * LONG + i] = element(rank, 2, i);
    MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, all, LONG, MPI_INT64_T, MPI_COMM_WORLD);
    for (int i = 0; i < LONG * size; i++) CHECK(all[i] == element(i / LONG, 2, i % LONG));
    memcpy(one, all + rank * LONG, sizeof(int64_t) * LONG);
    memset(all, 0, sizeof(int64_t) * (size_t)(LONG * size));
    int root = size - 1;
    if (rank == root) {
        memcpy(all + root * LONG, one, sizeof(int64_t) * LONG);
        MPI_Gather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, all, LONG, MPI_INT64_T, root, MPI_COMM_WORLD);
        for (int i = 0; i < LONG * size; i++) CHECK(all[i] == element(i / LONG, 2, i % LONG));
        MPI_Scatter(all, LONG, MPI_INT64_T, MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, root, MPI_COMM_WORLD);
    } else {
        MPI_Gather(one, LONG, MPI_INT64_T, NULL, 0, MPI_DATATYPE_NULL, root, MPI_COMM_WORLD);
        memset(one, 0, sizeof(int64_t) * LONG);
        MPI_Scatter(NULL, 0, MPI_DATATYPE_NULL, one, LONG, MPI_INT64_T, root, MPI_COMM_WORLD);
        for (int i = 0; i < LONG; i++) CHECK(one[i] == element(rank, 2, i));
    }
    for (int i = 0; i < LONG * size; i++) all[i] = element(rank, i / LONG, i % LONG);
    MPI_Alltoall(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, all, LONG, MPI_INT64_T, MPI_COMM_WORLD);
    for (int i = 0; i < LONG * size; i++) CHECK(all[i] == element(i / LONG, rank, i % LONG));
    free(one);
    free(all);
}

// Elements of rank `from` for rank `to`: none, few or many.
static int count_of(int from, int to) { return (int[]){0, SHORT, LONG / 4, LONG}[(from + 2 * to) % 4]; }

static void lengths_of_all_to_all(void) {
    int *out_counts = allocate(sizeof(int) * (size_t)size), *out_places = allocate(sizeof(int) * (size_t)size);
    int *in_counts = allocate(sizeof(int) * (size_t)size), *in_places = allocate(sizeof(int) * (size_t)size);
    int outs = 0, ins = 0;
    for (int r = 0; r < size; r++) {
        out_counts[r] = count_of(rank, r);
        in_counts[r] = count_of(r, rank);
        out_places[r] = outs;
        in_places[r] = ins + 3;
        outs += out_counts[r];
        ins += in_counts[r] + 3;
    }
    int64_t *out = numbers(outs), *in = numbers(ins);
    for (int r = 0; r < size; r++)
        for (int i = 0; i < out_counts[r]; i++) out[out_places[r] + i] = element(rank, r, i);
    for (int i = 0; i < ins; i++) in[i] = -9;
    MPI_Alltoallv(out, out_counts, out_places, MPI_INT64_T, in, in_counts, in_places, MPI_INT64_T, MPI_COMM_WORLD);
    for (int r = 0; r < size; r++) {
        for (int i = 0; i < in_counts[r]; i++) CHECK(in[in_places[r] + i] == element(r, rank, i));
        for (int i = 1; i <= 3; i++) CHECK(in[in_places[r] - i] == -9);
    }
    free(out_counts);
    free(out_places);
    free(in_counts);
    free(in_places);
    free(out);
    free(in);
}

// Gathers and scatters what differs in length, for all and for one.
static void lengths_of_one(void) {
    int *counts = allocate(sizeof(int) * (size_t)size), *places = allocate(sizeof(int) * (size_t)size), end = 0;
    for (int r = 0; r < size; r++) {
        counts[r] = LONG - 1000 * r;
        places[r] = end;
        end += counts[r] + 5;
    }
    int64_t *one = numbers(LONG), *all = numbers(end);
    for (int root = 0; root < size; root++) {
        for (int i = 0; i < counts[rank]; i++) one[i] = element(rank, root, i);
        for (int i = 0; i < end; i++) all[i] = -7;
        if (root % 2) MPI_Gatherv(one, counts[rank], MPI_INT64_T, all, counts, places, MPI_INT64_T, root, MPI_COMM_WORLD);
        else MPI_Allgatherv(one, counts[rank], MPI_INT64_T, all, counts, places, MPI_INT64_T, MPI_COMM_WORLD);
        for (int r = 0; r < size && (rank == root || root % 2 == 0); r++) {
            for (int i = 0; i < counts[r]; i++) CHECK(all[places[r] + i] == element(r, root, i));
            for (int i = 0; i < 5; i++) CHECK(all[places[r] + counts[r] + i] == -7);
        }
        for (int i = 0; i < counts[rank]; i++) one[i] = -1;
        MPI_Scatterv(all, counts, places, MPI_INT64_T, one, counts[rank], MPI_INT64_T, root, MPI_COMM_WORLD);
        for (int i = 0; i < counts[rank]; i++) CHECK(one[i] == element(rank, root, i));
    }
    free(counts);
    free(places);
    free(one);
    free(all);
}

// Composition of the maps x -> a x + b, of which the order counts, modulo 2^32.
static void compose(void *in, void *inout, int *count, MPI_Datatype *type) {
    uint32_t *first = in, *then = inout;
    (void)type;
    for (int i = 0; i < *count; i++) {
        then[2 * i + 1] += then[2 * i] * first[2 * i + 1];
        then[2 * i] *= first[2 * i];
    }
}

static void order(void) {
    enum { COUNT = 100000 };
    MPI_Datatype map;
    MPI_Op composition;
    MPI_Type_contiguous(2, MPI_UINT32_T, &map);
    MPI_Type_commit(&map);
    MPI_Op_create(compose, 0, &composition);
    uint32_t *own = allocate(8 * COUNT), *all = allocate(8 * COUNT);
    for (uint32_t i = 0; i < COUNT; i++) {
        own[2 * i] = 2 * i + 3 + (uint32_t)rank;
        own[2 * i + 1] = i + 7 * (uint32_t)rank;
    }
    MPI_Allreduce(own, all, COUNT, map, composition, MPI_COMM_WORLD);
    for (uint32_t i = 0; i < COUNT; i++) {
        uint32_t a = 1, b = 0;
        for (uint32_t r = 0; r < (uint32_t)size; r++) {
            uint32_t factor = 2 * i + 3 + r, add = i + 7 * r;
            b = add + factor * b;
            a *= factor;
        }
        CHECK(all[2 * i] == a && all[2 * i + 1] == b);
    }
    MPI_Op_free(&composition);
    MPI_Type_free(&map);
    free(own);
    free(all);
}

// Communicators of all ranks in reverse order, made and freed again and again, and two of halves at a time.
static void communicators(void) {
    int64_t *data = numbers(LONG), *result = numbers(LONG);
    for (int round = 0; round < 90; round++) {
        MPI_Comm turned;
        int own, count = round % 50 == 0 ? LONG : 3000;
        MPI_Comm_split(MPI_COMM_WORLD, 0, -rank, &turned);
        MPI_Comm_rank(turned, &own);
        CHECK(own == size - 1 - rank);
        for (int again = 0; again < 1 + round % 3; again++) {
            for (int i = 0; i < count; i++) data[i] = own == 0 ? element(round, again, i) : -1;
            MPI_Bcast(data, count, MPI_INT64_T, 0, turned);
            for (int i = 0; i < count; i++) CHECK(data[i] == element(round, again, i));
        }
        MPI_Comm_free(&turned);
    }
    MPI_Comm half;
    int halves;
    MPI_Comm_split(MPI_COMM_WORLD, rank % 2, rank, &half);
    MPI_Comm_size(half, &halves);
    for (int i = 0; i < LONG; i++) data[i] = rank + i;
    for (int again = 0; again < 3; again++) MPI_Allreduce(data, result, LONG, MPI_INT64_T, MPI_SUM, half);
    for (int i = 0; i < LONG; i++) CHECK(result[i] == (int64_t)halves * i + (int64_t)halves * (halves - 1) + halves * (rank % 2));
    MPI_Comm_free(&half);
    free(data);
    free(result);
}

// Between two groups, where the root's own is told apart by constants.
static void between_groups(void) {
    MPI_Comm half, both;
    int64_t *data = numbers(LONG), *all = numbers(LONG * size);
    bool is_low = rank < size / 2;
    MPI_Comm_split(MPI_COMM_WORLD, is_low, rank, &half);
    MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, is_low ? size / 2 : 0, 8, &both);
    for (int again = 0; again < 3; again++) {
        for (int i = 0; i < LONG; i++) data[i] = rank == 0 ? element(4, again, i) : -1;
        MPI_Bcast(data, LONG, MPI_INT64_T, !is_low ? 0 : rank == 0 ? MPI_ROOT : MPI_PROC_NULL, both);
        for (int i = 0; i < LONG; i++) CHECK(data[i] == (rank == 0 || !is_low ? element(4, again, i) : -1));
        // Arguments that mean nothing at a rank are null there.
        int givers = size - size / 2;
        if (!is_low) MPI_Gather(data, LONG, MPI_INT64_T, NULL, 0, MPI_DATATYPE_NULL, 0, both);
        else if (rank == 0) MPI_Gather(NULL, 0, MPI_DATATYPE_NULL, all, LONG, MPI_INT64_T, MPI_ROOT, both);
        else MPI_Gather(NULL, 0, MPI_DATATYPE_NULL, NULL, 0, MPI_DATATYPE_NULL, MPI_PROC_NULL, both);
        for (int i = 0; rank == 0 && i < LONG * givers; i++) CHECK(all[i] == element(4, again, i % LONG));
    }
    MPI_Comm_free(&both);
    MPI_Comm_free(&half);
    free(all);
    free(data);
}

// Messages of the program beside an operation match none of its own.
static void beside_messages(void) {
    int64_t *out = numbers(LONG), *in = numbers(LONG), *data = numbers(LONG);
    MPI_Request requests[2];
    for (int i = 0; i < LONG; i++) {
        out[i] = element(rank, 6, i);
        data[i] = rank == 0 ? element(0, 7, i) : -1;
    }
    MPI_Irecv(in, LONG, MPI_INT64_T, MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &requests[0]);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Bcast(data, LONG, MPI_INT64_T, 0, MPI_COMM_WORLD);
    for (int i = 0; i < LONG; i++) CHECK(data[i] == element(0, 7, i));
    MPI_Isend(out, LONG, MPI_INT64_T, next_rank(), 0, MPI_COMM_WORLD, &requests[1]);
    MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
    for (int i = 0; i < LONG; i++) CHECK(in[i] == element(previous_rank(), 6, i));
    free(out);
    free(in);
    free(data);
}

static const struct test_case groups[] = {
    {"two-types", two_types}, {"gaps", gaps}, {"in-place", in_place}, {"lengths-of-all-to-all", lengths_of_all_to_all},
    {"lengths-of-one", lengths_of_one}, {"order", order}, {"communicators", communicators}, {"between-groups", between_groups},
    {"beside-messages", beside_messages}, {0},
};

int main(int argc, char **argv) {
    const struct test_case *lists[] = {groups, NULL};
    MPI_Init(&argc, &argv);
    int held = run_cases(lists, argc - 1, argv + 1);
    if (rank == 0) printf("all %d cases hold\n", held);
    MPI_Finalize();
    return 0;
}
