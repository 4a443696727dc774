// large [CASE...]: large messages, in every way in which MPI may send and receive them, and what must not be taken for one.
//
// Output as of `mpi`. Half of the ranks are on one endpoint, half on another: rank r and rank r + size/2 have the network between them.
// With REST in the environment, each rank rests for so many milliseconds before MPI_Finalize.
#include "check.h"
#include <stdlib.h>
#include <string.h>
#include <stdio.h>
#include <unistd.h>

enum { TAG = 5, LARGE = 200000 };
extern const struct test_case completion[], memory[];

static int partner(void) { return (rank + size / 2) % size; }
static bool is_first(void) { return rank < size / 2; }

static int count_of(MPI_Status *status) {
    int count;
    MPI_Get_count(status, MPI_BYTE, &count);
    return count;
}

// Connects the ranks: the first large messages may go another way.
static void meet(void) {
    char *buffer = allocate(LARGE);
    for (int i = 0; i < 20; i++) {
        MPI_Sendrecv_replace(buffer, LARGE, MPI_BYTE, partner(), TAG, partner(), TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Barrier(MPI_COMM_WORLD);
    }
    free(buffer);
}

// Every length near which something changes, both ways at once, by each kind of send.
static void lengths(void) {
    static const int LENGTHS[] = {1, 16, 143, 144, 145, 288, 2047, 2048, 16383, 16384, 16385, 262144, 262145, 1000003, 5 << 20};
    for (size_t i = 0; i < sizeof LENGTHS / sizeof *LENGTHS; i++) {
        for (int kind = 0; kind < 4; kind++) {
            int len = LENGTHS[i];
            char *out = allocate((size_t)len), *in = allocate((size_t)len);
            MPI_Request request, sent = MPI_REQUEST_NULL;
            MPI_Status status;
            fill(out, (size_t)len, seed_of(rank, partner(), (uint64_t)len));
            MPI_Irecv(in, len, MPI_BYTE, partner(), TAG, MPI_COMM_WORLD, &request);
            if (kind == 0) MPI_Send(out, len, MPI_BYTE, partner(), TAG, MPI_COMM_WORLD);
            if (kind == 1) MPI_Ssend(out, len, MPI_BYTE, partner(), TAG, MPI_COMM_WORLD);
            if (kind == 2) MPI_Isend(out, len, MPI_BYTE, partner(), TAG, MPI_COMM_WORLD, &sent);
            if (kind == 3) MPI_Issend(out, len, MPI_BYTE, partner(), TAG, MPI_COMM_WORLD, &sent);
            MPI_Wait(&request, &status);
            MPI_Wait(&sent, MPI_STATUS_IGNORE);
            CHECK(request == MPI_REQUEST_NULL && sent == MPI_REQUEST_NULL);
            CHECK(count_of(&status) == len && status.MPI_SOURCE == partner() && status.MPI_TAG == TAG);
            CHECK(matches(in, (size_t)len, seed_of(partner(), rank, (uint64_t)len)));
            free(out);
            free(in);
        }
    }
}

// A receive is posted, its rank waits in a collective operation, and the sender comes there only when the message was received.
static void progress(void) {
    char *buffer = allocate(LARGE);
    for (int i = 0; i < 20; i++) {
        MPI_Request request = MPI_REQUEST_NULL;
        if (is_first()) MPI_Irecv(buffer, LARGE, MPI_BYTE, partner(), TAG, MPI_COMM_WORLD, &request);
        if (!is_first()) {
            fill(buffer, LARGE, seed_of(rank, partner(), (uint64_t)i));
            MPI_Ssend(buffer, LARGE, MPI_BYTE, partner(), TAG, MPI_COMM_WORLD);
        }
        MPI_Barrier(MPI_COMM_WORLD);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
        if (is_first()) CHECK(matches(buffer, LARGE, seed_of(partner(), rank, (uint64_t)i)));
    }
    free(buffer);
}

// From anybody, with any tag, into one buffer after the other; the status says from whom and what.
static void wildcards(void) {
    enum { EACH = 5 };
    if (rank != 0) {
        for (int i = 0; i < EACH; i++) {
            int len = i % 2 ? LARGE + i : 100 + i;
            char *out = allocate((size_t)len);
            fill(out, (size_t)len, seed_of(rank, 0, (uint64_t)i));
            MPI_Send(out, len, MPI_BYTE, 0, i, MPI_COMM_WORLD);
            free(out);
        }
        return;
    }
    int next[64] = {0};
    char *in = allocate(LARGE + EACH);
    for (int i = 0; i < EACH * (size - 1); i++) {
        MPI_Status status;
        MPI_Recv(in, LARGE + EACH, MPI_BYTE, MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &status);
        int from = status.MPI_SOURCE, tag = status.MPI_TAG;
        CHECK(from > 0 && from < size && tag == next[from]);
        next[from]++;
        CHECK(count_of(&status) == (tag % 2 ? LARGE + tag : 100 + tag));
        CHECK(matches(in, (size_t)count_of(&status), seed_of(from, 0, (uint64_t)tag)));
    }
    free(in);
}

// Probes tell the length of the message, however it travels, and the messages stay in order behind them.
static void probes(void) {
    static const int LENGTHS[] = {144, LARGE, 144, 10, LARGE + 1, 144};
    enum { COUNT = 6 };
    for (int kind = 0; kind < 4; kind++) {
        if (!is_first()) {
            for (int i = 0; i < COUNT; i++) {
                char *out = allocate((size_t)LENGTHS[i]);
                fill(out, (size_t)LENGTHS[i], seed_of(rank, partner(), (uint64_t)i));
                MPI_Send(out, LENGTHS[i], MPI_BYTE, partner(), TAG, MPI_COMM_WORLD);
                free(out);
            }
            continue;
        }
        for (int i = 0; i < COUNT; i++) {
            MPI_Status status, again;
            MPI_Message message = MPI_MESSAGE_NULL;
            MPI_Request request;
            int flag = 0;
            if (kind == 0) MPI_Probe(partner(), MPI_ANY_TAG, MPI_COMM_WORLD, &status);
            while (kind == 1 && !flag) MPI_Iprobe(MPI_ANY_SOURCE, TAG, MPI_COMM_WORLD, &flag, &status);
            if (kind == 2) MPI_Mprobe(partner(), TAG, MPI_COMM_WORLD, &message, &status);
            while (kind == 3 && !flag) MPI_Improbe(partner(), TAG, MPI_COMM_WORLD, &flag, &message, &status);
            CHECK(count_of(&status) == LENGTHS[i] && status.MPI_SOURCE == partner() && status.MPI_TAG == TAG);
            char *in = allocate(LARGE + 1);
            memset(in, 0, LARGE + 1);
            if (kind == 0) MPI_Recv(in, LARGE + 1, MPI_BYTE, partner(), TAG, MPI_COMM_WORLD, &again);
            if (kind == 1) {
                MPI_Irecv(in, LARGE + 1, MPI_BYTE, MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &request);
                MPI_Wait(&request, &again);
            }
            if (kind == 2) MPI_Mrecv(in, LARGE + 1, MPI_BYTE, &message, &again);
            if (kind == 3) {
                MPI_Imrecv(in, LARGE + 1, MPI_BYTE, &message, &request);
                MPI_Wait(&request, &again);
            }
            CHECK(message == MPI_MESSAGE_NULL);
            CHECK(count_of(&again) == LENGTHS[i] && again.MPI_SOURCE == partner() && again.MPI_TAG == TAG);
            CHECK(matches(in, (size_t)LENGTHS[i], seed_of(partner(), rank, (uint64_t)i)));
            free(in);
        }
    }
}

// A buffer that is too short: the error, the part that fits, and a connection that goes on.
static void truncation(void) {
    char *buffer = allocate(LARGE);
    MPI_Comm comm;
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    // For requests MPICH asks the handler of all ranks.
    MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    for (int i = 0; i < 4; i++) {
        if (!is_first()) {
            fill(buffer, LARGE, seed_of(rank, partner(), (uint64_t)i));
            MPI_Send(buffer, LARGE, MPI_BYTE, partner(), TAG, comm);
            continue;
        }
        int code, class;
        MPI_Status status;
        memset(buffer, 0, LARGE);
        if (i % 2 == 0) {
            code = MPI_Recv(buffer, 1000, MPI_BYTE, partner(), TAG, comm, &status);
        } else {
            MPI_Request request;
            MPI_Irecv(buffer, 1000, MPI_BYTE, partner(), TAG, comm, &request);
            code = MPI_Wait(&request, &status);
        }
        MPI_Error_class(code, &class);
        CHECK(class == MPI_ERR_TRUNCATE);
        // Open MPI itself writes on.
        for (int at = 1000; at < LARGE && getenv("RDMESH_MPI"); at++) CHECK(buffer[at] == 0);
    }
    if (!is_first()) MPI_Send(buffer, LARGE, MPI_BYTE, partner(), TAG, comm);
    if (is_first()) CHECK(MPI_Recv(buffer, LARGE, MPI_BYTE, partner(), TAG, comm, MPI_STATUS_IGNORE) == MPI_SUCCESS);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_ARE_FATAL);
    MPI_Comm_free(&comm);
    free(buffer);
}

// Data with gaps, at the sender, at the receiver, at both; in another order; and an element that comes in part.
static void datatypes(void) {
    enum { ROWS = 4000, COLUMNS = 6, WANTED = 5 };
    int(*matrix)[COLUMNS] = allocate(sizeof(int[ROWS][COLUMNS])), *plain = allocate(ROWS * sizeof(int));
    MPI_Datatype column, swapped, pair, triple;
    MPI_Type_vector(ROWS, 1, COLUMNS, MPI_INT, &column);
    MPI_Type_commit(&column);
    MPI_Type_indexed(2, (int[]){1, 1}, (int[]){1, 0}, MPI_INT, &swapped);
    MPI_Type_commit(&swapped);
    MPI_Type_contiguous(2, MPI_INT, &pair);
    MPI_Type_commit(&pair);
    MPI_Type_dup(pair, &triple);
    MPI_Type_commit(&triple);
    for (int kind = 0; kind < 5; kind++) {
        for (int i = 0; i < ROWS; i++) {
            for (int j = 0; j < COLUMNS; j++) matrix[i][j] = -1;
            plain[i] = rank * 100000 + i;
            if (kind == 0 || kind == 2) matrix[i][1] = plain[i];
        }
        MPI_Request request;
        void *in = kind == 0 ? (void *)plain : (void *)&matrix[0][WANTED];
        int *copy = allocate(ROWS * sizeof(int));
        memcpy(copy, plain, ROWS * sizeof(int));
        if (kind == 0) MPI_Irecv(in, ROWS, MPI_INT, partner(), TAG, MPI_COMM_WORLD, &request);
        if (kind == 1 || kind == 2) MPI_Irecv(in, 1, column, partner(), TAG, MPI_COMM_WORLD, &request);
        if (kind == 3) MPI_Irecv(plain, ROWS / 2, swapped, partner(), TAG, MPI_COMM_WORLD, &request);
        if (kind == 4) MPI_Irecv(plain, ROWS / 2, triple, partner(), TAG, MPI_COMM_WORLD, &request);
        if (kind == 0 || kind == 2) MPI_Send(&matrix[0][1], 1, column, partner(), TAG, MPI_COMM_WORLD);
        if (kind == 1) MPI_Send(copy, ROWS, MPI_INT, partner(), TAG, MPI_COMM_WORLD);
        if (kind == 3) MPI_Send(copy, ROWS, MPI_INT, partner(), TAG, MPI_COMM_WORLD);
        if (kind == 4) MPI_Send(copy, ROWS / 2, pair, partner(), TAG, MPI_COMM_WORLD);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
        for (int i = 0; i < ROWS; i++) {
            int sent = partner() * 100000 + i;
            if (kind == 0 || kind == 4) CHECK(plain[i] == sent);
            if (kind == 1 || kind == 2) CHECK(matrix[i][WANTED] == sent && (i == ROWS - 1 || matrix[i + 1][0] == -1));
            if (kind == 3) CHECK(plain[i ^ 1] == sent);
        }
        free(copy);
    }
    // Half of the rows of a column of 16-byte elements, and half an element of a longer type.
    MPI_Datatype rows;
    MPI_Type_vector(1500, 2, COLUMNS, MPI_INT, &rows);
    MPI_Type_commit(&rows);
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < COLUMNS; j++) matrix[i][j] = -1;
    MPI_Status status;
    int elements;
    MPI_Request request;
    for (int i = 0; i < ROWS; i++) plain[i] = rank * 100000 + i;
    MPI_Irecv(matrix, 1, rows, partner(), TAG, MPI_COMM_WORLD, &request);
    MPI_Send(plain, 2500, MPI_INT, partner(), TAG, MPI_COMM_WORLD);
    MPI_Wait(&request, &status);
    MPI_Get_elements(&status, rows, &elements);
    CHECK(elements == 2500);
    for (int i = 0; i < 3000; i++) CHECK(matrix[i / 2][i % 2] == (i < 2500 ? partner() * 100000 + i : -1));
    CHECK(matrix[0][2] == -1);
    MPI_Type_free(&rows);
    MPI_Type_free(&column);
    MPI_Type_free(&swapped);
    MPI_Type_free(&pair);
    MPI_Type_free(&triple);
    free(matrix);
    free(plain);
}

// Communicators with other ranks, whose handles are used again, and one between two groups.
static void communicators(void) {
    char *buffer = allocate(LARGE);
    for (int i = 0; i < 10; i++) {
        MPI_Comm reversed, between;
        MPI_Comm_split(MPI_COMM_WORLD, 0, i % 2 ? rank : size - rank, &reversed);
        int own, other;
        MPI_Comm_rank(reversed, &own);
        CHECK(own == (i % 2 ? rank : size - 1 - rank));
        other = (own + size / 2) % size;
        int world = i % 2 ? other : size - 1 - other;
        fill(buffer, LARGE, seed_of(rank, world, (uint64_t)i));
        MPI_Status status;
        MPI_Sendrecv_replace(buffer, LARGE, MPI_BYTE, other, TAG, other, TAG, reversed, &status);
        CHECK(status.MPI_SOURCE == other && matches(buffer, LARGE, seed_of(world, rank, (uint64_t)i)));
        MPI_Comm_free(&reversed);
        MPI_Comm_split(MPI_COMM_WORLD, is_first(), rank, &reversed);
        MPI_Intercomm_create(reversed, 0, MPI_COMM_WORLD, is_first() ? size / 2 : 0, TAG, &between);
        MPI_Comm_rank(between, &own);
        fill(buffer, LARGE, seed_of(rank, partner(), (uint64_t)i));
        MPI_Sendrecv_replace(buffer, LARGE, MPI_BYTE, own, TAG, own, TAG, between, &status);
        CHECK(status.MPI_SOURCE == own && matches(buffer, LARGE, seed_of(partner(), rank, (uint64_t)i)));
        MPI_Comm_free(&between);
        MPI_Comm_free(&reversed);
    }
    free(buffer);
}

// To nobody, and to oneself.
static void nobody(void) {
    char *out = allocate(LARGE), *in = allocate(LARGE);
    MPI_Status status;
    MPI_Request request;
    MPI_Send(out, LARGE, MPI_BYTE, MPI_PROC_NULL, TAG, MPI_COMM_WORLD);
    MPI_Recv(in, LARGE, MPI_BYTE, MPI_PROC_NULL, TAG, MPI_COMM_WORLD, &status);
    CHECK(status.MPI_SOURCE == MPI_PROC_NULL && count_of(&status) == 0);
    MPI_Irecv(in, LARGE, MPI_BYTE, MPI_PROC_NULL, TAG, MPI_COMM_WORLD, &request);
    MPI_Wait(&request, &status);
    // MPICH tells no source here.
    CHECK(count_of(&status) == 0);
    fill(out, LARGE, seed_of(rank, rank, 1));
    MPI_Irecv(in, LARGE, MPI_BYTE, rank, TAG, MPI_COMM_WORLD, &request);
    MPI_Send(out, LARGE, MPI_BYTE, rank, TAG, MPI_COMM_WORLD);
    MPI_Wait(&request, &status);
    CHECK(count_of(&status) == LARGE && matches(in, LARGE, seed_of(rank, rank, 1)));
    free(out);
    free(in);
}

// A thousand messages under way at a time, received in another order than they were sent in.
static void many(void) {
    enum { COUNT = 1200, LEN = 20000 };
    char *out = allocate((size_t)COUNT * LEN), *in = allocate((size_t)COUNT * LEN);
    MPI_Request *requests = allocate(COUNT * 2 * sizeof *requests);
    for (int i = 0; i < COUNT; i++) {
        fill(out + (size_t)i * LEN, LEN, seed_of(rank, partner(), (uint64_t)i));
        MPI_Isend(out + (size_t)i * LEN, LEN, MPI_BYTE, partner(), i, MPI_COMM_WORLD, &requests[i]);
    }
    for (int i = 0; i < COUNT; i++) {
        int tag = COUNT - 1 - i;
        MPI_Irecv(in + (size_t)tag * LEN, LEN, MPI_BYTE, partner(), tag, MPI_COMM_WORLD, &requests[COUNT + i]);
    }
    MPI_Waitall(COUNT * 2, requests, MPI_STATUSES_IGNORE);
    for (int i = 0; i < COUNT; i++) CHECK(matches(in + (size_t)i * LEN, LEN, seed_of(partner(), rank, (uint64_t)i)));
    free(out);
    free(in);
    free(requests);
}

static const struct test_case large[] = {
    {"meet", meet}, {"lengths", lengths}, {"progress", progress}, {"wildcards", wildcards}, {"probes", probes},
    {"truncation", truncation}, {"datatypes", datatypes}, {"communicators", communicators}, {"nobody", nobody}, {"many", many}, {0},
};

int main(int argc, char **argv) {
    const struct test_case *lists[] = {large, completion, memory, NULL};
    MPI_Init(&argc, &argv);
    int held = run_cases(lists, argc - 1, argv + 1);
    if (rank == 0) printf("all %d cases hold\n", held);
    fflush(stdout);
    const char *rest = getenv("REST");
    if (rest) usleep((useconds_t)atoi(rest) * 1000);
    MPI_Finalize();
    return 0;
}
