// sizes [ROUNDS]: time of messages of each size between the first rank and the last, in microseconds each way, and the rate of a stream.
//
// Rank 0 prints "BYTES MICROSECONDS MB_PER_SECOND" for each size.
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX = 4 << 20, WINDOW = 16 };

static double ping(int rank, int other, char *buffer, int len, int rounds) {
    double begin = MPI_Wtime();
    for (int i = 0; i < rounds; i++) {
        if (rank == 0) MPI_Send(buffer, len, MPI_BYTE, other, 1, MPI_COMM_WORLD);
        MPI_Recv(buffer, len, MPI_BYTE, other, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        if (rank != 0) MPI_Send(buffer, len, MPI_BYTE, other, 1, MPI_COMM_WORLD);
    }
    return (MPI_Wtime() - begin) / rounds / 2;
}

static double stream(int rank, int other, char *buffer, int len, int rounds) {
    MPI_Request requests[WINDOW];
    double begin = MPI_Wtime();
    for (int i = 0; i < rounds; i += WINDOW) {
        for (int j = 0; j < WINDOW; j++) {
            if (rank == 0) MPI_Isend(buffer, len, MPI_BYTE, other, 2, MPI_COMM_WORLD, &requests[j]);
            else MPI_Irecv(buffer, len, MPI_BYTE, other, 2, MPI_COMM_WORLD, &requests[j]);
        }
        MPI_Waitall(WINDOW, requests, MPI_STATUSES_IGNORE);
    }
    if (rank == 0) MPI_Recv(buffer, 1, MPI_BYTE, other, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    else MPI_Send(buffer, 1, MPI_BYTE, other, 3, MPI_COMM_WORLD);
    return (double)len * rounds / (MPI_Wtime() - begin) / 1e6;
}

int main(int argc, char **argv) {
    static const int SIZES[] = {8, 1 << 10, 2 << 10, 4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20};
    int rank, size;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    int other = rank == 0 ? size - 1 : 0, budget = argc > 1 ? atoi(argv[1]) : 400;
    char *buffer = malloc(MAX);
    memset(buffer, 1, MAX);
    for (size_t i = 0; i < sizeof SIZES / sizeof *SIZES; i++) {
        int rounds = SIZES[i] > 100000 ? budget / 4 : budget;
        rounds = (rounds / WINDOW + 1) * WINDOW;
        MPI_Barrier(MPI_COMM_WORLD);
        if (rank != 0 && rank != size - 1) continue;
        ping(rank, other, buffer, SIZES[i], 20);
        double time = ping(rank, other, buffer, SIZES[i], rounds), rate = stream(rank, other, buffer, SIZES[i], rounds);
        if (rank == 0) printf("%d %.1f %.0f\n", SIZES[i], time * 1e6, rate);
        fflush(stdout);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    free(buffer);
    MPI_Finalize();
    return 0;
}
