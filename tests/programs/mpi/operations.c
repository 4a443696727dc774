// operations ROUNDS: times of collective operations of all ranks. Rank 0 prints "OPERATION BYTES MICROSECONDS" for each, where BYTES are one
// rank's, and MICROSECONDS the mean of ROUNDS rounds of 1 MiB, or more of less.
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void broadcast(double *own, double *all, int count) {
    (void)all;
    MPI_Bcast(own, count, MPI_DOUBLE, 0, MPI_COMM_WORLD);
}

static void reduce_for_all(double *own, double *all, int count) {
    MPI_Allreduce(own, all, count, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
}

static void gather_for_all(double *own, double *all, int count) {
    MPI_Allgather(own, count, MPI_DOUBLE, all, count, MPI_DOUBLE, MPI_COMM_WORLD);
}

// Each rank has `count` elements for all others together, as a transposed matrix has.
static void all_to_all(double *own, double *all, int count) {
    int size;
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Alltoall(own, count / size, MPI_DOUBLE, all, count / size, MPI_DOUBLE, MPI_COMM_WORLD);
}

static const struct {
    const char *name;
    void (*run)(double *own, double *all, int count);
} OPERATIONS[] = {{"MPI_Bcast", broadcast}, {"MPI_Allreduce", reduce_for_all}, {"MPI_Allgather", gather_for_all}, {"MPI_Alltoall", all_to_all}};

enum { LONGEST = 1 << 20, FIRST = 3 };

int main(int argc, char **argv) {
    int rank, size, rounds = argc > 1 ? atoi(argv[1]) : 20;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    double *own = malloc(LONGEST), *all = malloc((size_t)LONGEST * (size_t)size);
    if (own == NULL || all == NULL) MPI_Abort(MPI_COMM_WORLD, 1);
    memset(own, 0, LONGEST);
    memset(all, 0, (size_t)LONGEST * (size_t)size);
    for (size_t k = 0; k < sizeof OPERATIONS / sizeof *OPERATIONS; k++) {
        for (int len = 16 << 10; len <= LONGEST; len *= 8) {
            int count = len / (int)sizeof(double), times = rounds * (LONGEST / len > 8 ? 8 : LONGEST / len);
            double begin = 0;
            // The first ones are on their way to what the others find.
            for (int i = -FIRST; i < times; i++) {
                if (i == 0) {
                    MPI_Barrier(MPI_COMM_WORLD);
                    begin = MPI_Wtime();
                }
                OPERATIONS[k].run(own, all, count);
            }
            MPI_Barrier(MPI_COMM_WORLD);
            if (rank == 0) printf("%s %d %.1f\n", OPERATIONS[k].name, len, (MPI_Wtime() - begin) / times * 1e6);
        }
    }
    free(own);
    free(all);
    MPI_Finalize();
    return 0;
}
