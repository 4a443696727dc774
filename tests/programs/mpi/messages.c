// Messages between two ranks.
#include "check.h"
#include <stdlib.h>
#include <string.h>

static const size_t SIZES[] = {0, 1, 7, 8, 64, 1000, 4096, 8191, 65536, 1000003, (4 << 20) + 1, 16 << 20};
enum { COUNT = sizeof SIZES / sizeof *SIZES, MANY = 500, TAG = 7 };

static void expect(const MPI_Status *status, int source, int tag, size_t len) {
    int count;
    MPI_Get_count(status, MPI_BYTE, &count);
    CHECK(status->MPI_SOURCE == source);
    CHECK(status->MPI_TAG == tag);
    CHECK((size_t)count == len);
}

// Every size once around the ring.
static void ring(void) {
    for (size_t i = 0; i < COUNT; i++) {
        size_t len = SIZES[i];
        MPI_Status status;
        char *out = allocate(len), *in = allocate(len);
        fill(out, len, seed_of(rank, next_rank(), i));
        MPI_Sendrecv(out, (int)len, MPI_BYTE, next_rank(), TAG, in, (int)len, MPI_BYTE, previous_rank(), TAG, MPI_COMM_WORLD, &status);
        expect(&status, previous_rank(), TAG, len);
        CHECK(matches(in, len, seed_of(previous_rank(), rank, i)));
        free(out);
        free(in);
    }
}

// Every rank to every rank, itself too, all at once.
static void nonblocking(void) {
    enum { SEVERAL = 4 };
    static const size_t len[SEVERAL] = {3, 5000, 70000, 600001};
    int count = size * SEVERAL;
    char **out = allocate(sizeof *out * (size_t)count), **in = allocate(sizeof *in * (size_t)count);
    MPI_Request *requests = allocate(sizeof *requests * (size_t)count * 2);
    for (int i = 0; i < count; i++) {
        int other = i / SEVERAL, which = i % SEVERAL;
        in[i] = allocate(len[which]);
        MPI_Irecv(in[i], (int)len[which], MPI_BYTE, other, which, MPI_COMM_WORLD, &requests[i]);
    }
    for (int i = 0; i < count; i++) {
        int other = i / SEVERAL, which = i % SEVERAL;
        out[i] = allocate(len[which]);
        fill(out[i], len[which], seed_of(rank, other, (uint64_t)which));
        MPI_Isend(out[i], (int)len[which], MPI_BYTE, other, which, MPI_COMM_WORLD, &requests[count + i]);
    }
    MPI_Waitall(count * 2, requests, MPI_STATUSES_IGNORE);
    for (int i = 0; i < count; i++) {
        int other = i / SEVERAL, which = i % SEVERAL;
        CHECK(matches(in[i], len[which], seed_of(other, rank, (uint64_t)which)));
        free(in[i]);
        free(out[i]);
    }
    free(in);
    free(out);
    free(requests);
}

// Many small messages that nobody waits for yet; they come in the order in which they were sent.
static void order(void) {
    int out[MANY];
    MPI_Request requests[MANY];
    for (int i = 0; i < MANY; i++) {
        out[i] = i * 3 + rank;
        MPI_Isend(&out[i], 1, MPI_INT, next_rank(), TAG, MPI_COMM_WORLD, &requests[i]);
    }
    for (int i = 0; i < MANY; i++) {
        int in = -1;
        MPI_Recv(&in, 1, MPI_INT, previous_rank(), TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        CHECK(in == i * 3 + previous_rank());
    }
    MPI_Waitall(MANY, requests, MPI_STATUSES_IGNORE);
}

// Messages of unknown size, source and tag are looked at before they are received.
static void probes(void) {
    if (rank != 0) {
        for (int i = 0; i < 2; i++) {
            size_t len = i == 0 ? 100 + (size_t)rank : 300000 + (size_t)rank;
            char *out = allocate(len);
            fill(out, len, seed_of(rank, 0, (uint64_t)i));
            MPI_Send(out, (int)len, MPI_BYTE, 0, i, MPI_COMM_WORLD);
            free(out);
        }
        return;
    }
    for (int i = 0; i < (size - 1) * 2; i++) {
        MPI_Message message;
        MPI_Status status;
        int count;
        if (i % 2 == 0) MPI_Probe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &status);
        MPI_Mprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &message, &status);
        MPI_Get_count(&status, MPI_BYTE, &count);
        CHECK(count == (status.MPI_TAG == 0 ? 100 : 300000) + status.MPI_SOURCE);
        char *in = allocate((size_t)count);
        MPI_Mrecv(in, count, MPI_BYTE, &message, MPI_STATUS_IGNORE);
        CHECK(matches(in, (size_t)count, seed_of(status.MPI_SOURCE, 0, (uint64_t)status.MPI_TAG)));
        free(in);
    }
}

// Synchronous, buffered and persistent sends.
static void modes(void) {
    enum { LEN = 50000, TIMES = 10 };
    char *out = allocate(LEN), *in = allocate(LEN);
    char *space = allocate(LEN + MPI_BSEND_OVERHEAD);
    MPI_Request request, pair[2];
    fill(out, LEN, seed_of(rank, next_rank(), 1));
    MPI_Irecv(in, LEN, MPI_BYTE, previous_rank(), TAG, MPI_COMM_WORLD, &request);
    MPI_Ssend(out, LEN, MPI_BYTE, next_rank(), TAG, MPI_COMM_WORLD);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    CHECK(matches(in, LEN, seed_of(previous_rank(), rank, 1)));

    MPI_Buffer_attach(space, LEN + MPI_BSEND_OVERHEAD);
    MPI_Bsend(out, LEN, MPI_BYTE, next_rank(), TAG, MPI_COMM_WORLD);
    memset(in, 0, LEN);
    MPI_Recv(in, LEN, MPI_BYTE, previous_rank(), TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    CHECK(matches(in, LEN, seed_of(previous_rank(), rank, 1)));
    int detached;
    MPI_Buffer_detach(&space, &detached);

    MPI_Send_init(out, LEN, MPI_BYTE, next_rank(), TAG, MPI_COMM_WORLD, &pair[0]);
    MPI_Recv_init(in, LEN, MPI_BYTE, previous_rank(), TAG, MPI_COMM_WORLD, &pair[1]);
    for (uint64_t i = 0; i < TIMES; i++) {
        fill(out, LEN, seed_of(rank, next_rank(), i));
        MPI_Startall(2, pair);
        MPI_Waitall(2, pair, MPI_STATUSES_IGNORE);
        CHECK(matches(in, LEN, seed_of(previous_rank(), rank, i)));
    }
    MPI_Request_free(&pair[0]);
    MPI_Request_free(&pair[1]);
    free(out);
    free(in);
    free(space);
}

// Columns of a matrix: memory with gaps, gathered and scattered.
static void datatypes(void) {
    enum { ROWS = 512, COLUMNS = 96 };
    double(*matrix)[COLUMNS] = allocate(sizeof(double[ROWS][COLUMNS]));
    MPI_Datatype column;
    MPI_Type_vector(ROWS, 1, COLUMNS, MPI_DOUBLE, &column);
    MPI_Type_commit(&column);
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < COLUMNS; j++) matrix[i][j] = rank * 1e6 + i * 100 + j;
    MPI_Sendrecv(&matrix[0][3], 1, column, next_rank(), TAG, &matrix[0][90], 1, column, previous_rank(), TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < COLUMNS; j++)
            CHECK(matrix[i][j] == (j == 90 ? previous_rank() * 1e6 + i * 100 + 3 : rank * 1e6 + i * 100 + j));
    MPI_Type_free(&column);
    free(matrix);
}

const struct test_case messages[] = {
    {"ring", ring}, {"nonblocking", nonblocking}, {"order", order}, {"probes", probes}, {"modes", modes}, {"datatypes", datatypes}, {0},
};
