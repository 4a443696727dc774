// stream MESSAGES: so many large messages from each rank to its partner on the other endpoint, both ways at once, each checked.
//
// Rank 0 prints "begin", and "N messages are whole" at the end.
#include "check.h"
#include <stdio.h>
#include <stdlib.h>

enum { TAG = 6, LEN = 1 << 20, WINDOW = 4 };

int main(int argc, char **argv) {
    char *in[WINDOW], *out[WINDOW];
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    int partner = (rank + size / 2) % size, count = argc > 1 ? atoi(argv[1]) : 100;
    for (int j = 0; j < WINDOW; j++) in[j] = allocate(LEN), out[j] = allocate(LEN);
    if (rank == 0) printf("begin\n");
    fflush(stdout);
    for (int i = 0; i < count; i += WINDOW) {
        MPI_Request requests[2 * WINDOW];
        for (int j = 0; j < WINDOW; j++) {
            fill(out[j], LEN, (uint64_t)(i + j) << 32 | (uint64_t)rank);
            MPI_Irecv(in[j], LEN, MPI_BYTE, partner, TAG, MPI_COMM_WORLD, &requests[2 * j]);
            MPI_Isend(out[j], LEN, MPI_BYTE, partner, TAG, MPI_COMM_WORLD, &requests[2 * j + 1]);
        }
        MPI_Waitall(2 * WINDOW, requests, MPI_STATUSES_IGNORE);
        for (int j = 0; j < WINDOW; j++) CHECK(matches(in[j], LEN, (uint64_t)(i + j) << 32 | (uint64_t)partner));
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) printf("%d messages are whole\n", count);
    MPI_Finalize();
    return 0;
}
