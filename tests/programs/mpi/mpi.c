// mpi [CASE...]: what MPI promises, checked: messages, collective operations and one-sided windows.
//
// Rank 0 prints "CASE: holds MILLISECONDS" for each case, the time of a message, and "all N cases hold". A case that does not hold ends all ranks.
#include "check.h"
#include <stdio.h>

// Half the round trip of a small message between the first rank and the last, which are on two endpoints.
static void ping_pong(void) {
    enum { ROUNDS = 200 };
    char word[8] = {0};
    int other = rank == 0 ? size - 1 : 0;
    double begin = MPI_Wtime();
    for (int i = 0; i < ROUNDS && (rank == 0 || rank == size - 1); i++) {
        if (rank == 0) MPI_Send(word, sizeof word, MPI_BYTE, other, 0, MPI_COMM_WORLD);
        MPI_Recv(word, sizeof word, MPI_BYTE, other, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        if (rank != 0) MPI_Send(word, sizeof word, MPI_BYTE, other, 0, MPI_COMM_WORLD);
    }
    if (rank == 0) printf("8 bytes: %.1f us each way\n", (MPI_Wtime() - begin) * 1e6 / (2 * ROUNDS));
    MPI_Barrier(MPI_COMM_WORLD);
}

int main(int argc, char **argv) {
    const struct test_case *lists[] = {messages, collectives, windows, NULL};
    MPI_Init(&argc, &argv);
    int held = run_cases(lists, argc - 1, argv + 1);
    ping_pong();
    if (rank == 0) printf("all %d cases hold\n", held);
    MPI_Finalize();
    return 0;
}
