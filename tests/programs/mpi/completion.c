// Completion of requests, large and small, in all the ways that MPI has.
#include "check.h"
#include <stdlib.h>
#include <string.h>

enum { TAG = 6, LARGE = 150000, SMALL = 50, COUNT = 8 };

static int partner(void) { return (rank + size / 2) % size; }
static int length(int i) { return i % 2 ? LARGE + i : SMALL + i; }

struct exchange {
    char *in[COUNT], *out[COUNT];
    MPI_Request in_requests[COUNT], out_requests[COUNT];
};

static void begin(struct exchange *exchange, uint64_t round) {
    for (int i = 0; i < COUNT; i++) {
        exchange->in[i] = allocate((size_t)length(i));
        exchange->out[i] = allocate((size_t)length(i));
        fill(exchange->out[i], (size_t)length(i), seed_of(rank, partner(), round * COUNT + (uint64_t)i));
        MPI_Irecv(exchange->in[i], length(i), MPI_BYTE, partner(), i, MPI_COMM_WORLD, &exchange->in_requests[i]);
    }
    for (int i = 0; i < COUNT; i++)
        MPI_Isend(exchange->out[i], length(i), MPI_BYTE, partner(), i, MPI_COMM_WORLD, &exchange->out_requests[i]);
}

static void end(struct exchange *exchange, uint64_t round) {
    for (int i = 0; i < COUNT; i++) {
        CHECK(exchange->in_requests[i] == MPI_REQUEST_NULL);
        CHECK(matches(exchange->in[i], (size_t)length(i), seed_of(partner(), rank, round * COUNT + (uint64_t)i)));
        free(exchange->in[i]);
        free(exchange->out[i]);
    }
}

static void expect(MPI_Status *status, int i) {
    int count;
    MPI_Get_count(status, MPI_BYTE, &count);
    CHECK(status->MPI_SOURCE == partner() && status->MPI_TAG == i && count == length(i));
}

static void any(void) {
    for (uint64_t round = 0; round < 6; round++) {
        struct exchange exchange;
        MPI_Status status;
        bool seen[COUNT] = {false};
        int index, flag;
        begin(&exchange, round);
        for (int done = 0; done < COUNT; done++) {
            if (round % 2 == 0) {
                MPI_Waitany(COUNT, exchange.in_requests, &index, &status);
            } else {
                do MPI_Testany(COUNT, exchange.in_requests, &index, &flag, &status);
                while (!flag);
            }
            CHECK(index >= 0 && index < COUNT && !seen[index]);
            seen[index] = true;
            expect(&status, index);
        }
        MPI_Waitany(COUNT, exchange.in_requests, &index, &status);
        CHECK(index == MPI_UNDEFINED);
        MPI_Testany(COUNT, exchange.in_requests, &index, &flag, &status);
        CHECK(flag && index == MPI_UNDEFINED);
        MPI_Waitall(COUNT, exchange.out_requests, MPI_STATUSES_IGNORE);
        end(&exchange, round);
    }
}

static void some(void) {
    for (uint64_t round = 0; round < 6; round++) {
        struct exchange exchange;
        MPI_Status statuses[COUNT];
        int indices[COUNT], number;
        bool seen[COUNT] = {false};
        begin(&exchange, round);
        for (int done = 0; done < COUNT; done += number) {
            if (round % 2 == 0) {
                MPI_Waitsome(COUNT, exchange.in_requests, &number, indices, statuses);
                CHECK(number > 0);
            } else {
                MPI_Testsome(COUNT, exchange.in_requests, &number, indices, statuses);
                CHECK(number >= 0);
            }
            for (int i = 0; i < number; i++) {
                CHECK(!seen[indices[i]]);
                seen[indices[i]] = true;
                expect(&statuses[i], indices[i]);
            }
        }
        MPI_Testsome(COUNT, exchange.in_requests, &number, indices, statuses);
        CHECK(number == MPI_UNDEFINED);
        MPI_Waitall(COUNT, exchange.out_requests, MPI_STATUSES_IGNORE);
        end(&exchange, round);
    }
}

static void all(void) {
    for (uint64_t round = 0; round < 6; round++) {
        struct exchange exchange;
        MPI_Status statuses[COUNT];
        int flag = 0;
        begin(&exchange, round);
        if (round % 3 == 0) MPI_Waitall(COUNT, exchange.in_requests, statuses);
        while (round % 3 == 1 && !flag) MPI_Testall(COUNT, exchange.in_requests, &flag, statuses);
        for (int i = 0; round % 3 == 2 && i < COUNT; i++) {
            do MPI_Request_get_status(exchange.in_requests[i], &flag, &statuses[i]);
            while (!flag);
            expect(&statuses[i], i);
            MPI_Status again;
            MPI_Test(&exchange.in_requests[i], &flag, &again);
            CHECK(flag);
            expect(&again, i);
        }
        for (int i = 0; i < COUNT; i++) expect(&statuses[i], i);
        MPI_Waitall(COUNT, exchange.out_requests, MPI_STATUSES_IGNORE);
        end(&exchange, round);
    }
}

// One request of several fails: the others are there, and the statuses say which it was.
static void errors(void) {
    MPI_Comm comm;
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    // For requests MPICH asks the handler of all ranks.
    MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    char *out = allocate(LARGE), *in[3];
    MPI_Request requests[3], sent[3];
    MPI_Status statuses[3];
    fill(out, LARGE, seed_of(rank, partner(), 1));
    for (int i = 0; i < 3; i++) {
        in[i] = allocate(LARGE);
        MPI_Irecv(in[i], i == 1 ? 1000 : LARGE, MPI_BYTE, partner(), i, comm, &requests[i]);
    }
    for (int i = 0; i < 3; i++) MPI_Isend(out, LARGE, MPI_BYTE, partner(), i, comm, &sent[i]);
    CHECK(MPI_Waitall(3, requests, statuses) == MPI_ERR_IN_STATUS);
    for (int i = 0; i < 3; i++) {
        int class;
        MPI_Error_class(statuses[i].MPI_ERROR, &class);
        CHECK(class == (i == 1 ? MPI_ERR_TRUNCATE : MPI_SUCCESS));
        if (i != 1) CHECK(matches(in[i], LARGE, seed_of(partner(), rank, 1)));
        free(in[i]);
    }
    MPI_Waitall(3, sent, MPI_STATUSES_IGNORE);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_ARE_FATAL);
    MPI_Comm_free(&comm);
    free(out);
}

// Persistent receives and sends, started again and again, together and one by one.
static void persistent(void) {
    char *out[2] = {allocate(LARGE), allocate(SMALL)}, *in[2] = {allocate(LARGE), allocate(LARGE)};
    MPI_Request requests[4];
    for (int i = 0; i < 2; i++) {
        MPI_Send_init(out[i], i ? SMALL : LARGE, MPI_BYTE, partner(), i, MPI_COMM_WORLD, &requests[i]);
        MPI_Recv_init(in[i], LARGE, MPI_BYTE, partner(), i, MPI_COMM_WORLD, &requests[2 + i]);
    }
    MPI_Waitall(4, requests, MPI_STATUSES_IGNORE);
    for (uint64_t round = 0; round < 10; round++) {
        for (int i = 0; i < 2; i++) fill(out[i], i ? SMALL : LARGE, seed_of(rank, partner(), round * 2 + (uint64_t)i));
        if (round % 2) {
            MPI_Startall(4, requests);
            MPI_Waitall(4, requests, MPI_STATUSES_IGNORE);
        } else {
            MPI_Start(&requests[2]);
            MPI_Start(&requests[3]);
            MPI_Send(out[0], LARGE, MPI_BYTE, partner(), 0, MPI_COMM_WORLD);
            MPI_Send(out[1], SMALL, MPI_BYTE, partner(), 1, MPI_COMM_WORLD);
            for (int i = 2; i < 4; i++) MPI_Wait(&requests[i], MPI_STATUS_IGNORE);
        }
        for (int i = 0; i < 2; i++)
            CHECK(matches(in[i], i ? SMALL : LARGE, seed_of(partner(), rank, round * 2 + (uint64_t)i)));
        for (int i = 0; i < 4; i++) CHECK(requests[i] != MPI_REQUEST_NULL);
    }
    for (int i = 0; i < 4; i++) MPI_Request_free(&requests[i]);
    for (int i = 0; i < 2; i++) {
        free(out[i]);
        free(in[i]);
    }
}

// Persistent sends of each kind, completed in each way; one is freed while it is under way.
static void again(void) {
    enum { KINDS = 3, ROUNDS = 8 };
    char *out[KINDS], *in[KINDS];
    MPI_Request sends[KINDS], receives[KINDS];
    for (int i = 0; i < KINDS; i++) {
        out[i] = allocate(LARGE);
        in[i] = allocate(LARGE);
    }
    MPI_Send_init(out[0], LARGE, MPI_BYTE, partner(), 0, MPI_COMM_WORLD, &sends[0]);
    MPI_Ssend_init(out[1], LARGE, MPI_BYTE, partner(), 1, MPI_COMM_WORLD, &sends[1]);
    MPI_Rsend_init(out[2], LARGE, MPI_BYTE, partner(), 2, MPI_COMM_WORLD, &sends[2]);
    for (uint64_t round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < KINDS; i++) {
            fill(out[i], LARGE, seed_of(rank, partner(), round * KINDS + (uint64_t)i));
            MPI_Irecv(in[i], LARGE, MPI_BYTE, partner(), i, MPI_COMM_WORLD, &receives[i]);
        }
        // A ready send wants its receive posted.
        MPI_Barrier(MPI_COMM_WORLD);
        MPI_Startall(KINDS, sends);
        MPI_Waitall(KINDS, receives, MPI_STATUSES_IGNORE);
        int left = KINDS;
        while (left > 0) {
            int index = MPI_UNDEFINED, flag = 0, number = 0, indices[KINDS];
            if (round % 4 == 0) MPI_Waitany(KINDS, sends, &index, MPI_STATUS_IGNORE);
            if (round % 4 == 1) MPI_Testany(KINDS, sends, &index, &flag, MPI_STATUS_IGNORE);
            if (round % 4 == 2) MPI_Waitsome(KINDS, sends, &number, indices, MPI_STATUSES_IGNORE);
            if (round % 4 == 3) MPI_Wait(&sends[KINDS - left], MPI_STATUS_IGNORE), number = 1;
            CHECK(number != MPI_UNDEFINED);
            left -= number + (index != MPI_UNDEFINED);
        }
        int flag;
        MPI_Testall(KINDS, sends, &flag, MPI_STATUSES_IGNORE);
        CHECK(flag && left == 0);
        for (int i = 0; i < KINDS; i++) {
            CHECK(sends[i] != MPI_REQUEST_NULL);
            CHECK(matches(in[i], LARGE, seed_of(partner(), rank, round * KINDS + (uint64_t)i)));
        }
    }
    MPI_Irecv(in[0], LARGE, MPI_BYTE, partner(), 0, MPI_COMM_WORLD, &receives[0]);
    for (int i = 0; i < KINDS; i++) {
        if (i == 0) MPI_Start(&sends[0]);
        MPI_Request_free(&sends[i]);
        CHECK(sends[i] == MPI_REQUEST_NULL);
    }
    MPI_Wait(&receives[0], MPI_STATUS_IGNORE);
    CHECK(matches(in[0], LARGE, seed_of(partner(), rank, (ROUNDS - 1) * KINDS)));
    // The peer has received: the buffers are free.
    MPI_Barrier(MPI_COMM_WORLD);
    for (int i = 0; i < KINDS; i++) {
        free(out[i]);
        free(in[i]);
    }
}

// Receives that nothing matches are cancelled; a request that is freed ends by itself.
static void cancelled(void) {
    char *in = allocate(LARGE), *out = allocate(LARGE);
    MPI_Request request;
    MPI_Status status;
    int flag;
    for (int i = 0; i < 10; i++) {
        MPI_Irecv(in, LARGE, MPI_BYTE, partner(), 77, MPI_COMM_WORLD, &request);
        MPI_Cancel(&request);
        MPI_Wait(&request, &status);
        MPI_Test_cancelled(&status, &flag);
        CHECK(flag && request == MPI_REQUEST_NULL);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    for (uint64_t i = 0; i < 10; i++) {
        char *copy = allocate(LARGE);
        fill(copy, LARGE, seed_of(rank, partner(), i));
        memcpy(out, copy, LARGE);
        MPI_Isend(out, LARGE, MPI_BYTE, partner(), TAG, MPI_COMM_WORLD, &request);
        MPI_Request_free(&request);
        CHECK(request == MPI_REQUEST_NULL);
        MPI_Recv(in, LARGE, MPI_BYTE, partner(), TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        CHECK(matches(in, LARGE, seed_of(partner(), rank, i)));
        // The peer has received: the buffer is free again.
        MPI_Barrier(MPI_COMM_WORLD);
        free(copy);
    }
    free(in);
    free(out);
}

// A large message behind many small ones, more than the network holds: tests of its request alone bring all of them on their way.
static void alone(void) {
    enum { SHORT = 8000, MANY = 2000 };
    char *out = allocate(LARGE), *in = allocate(LARGE), *small = allocate(SHORT);
    static MPI_Request requests[MANY];
    if (rank < size / 2) {
        fill(out, LARGE, 5);
        memset(small, 1, SHORT);
        for (int i = 0; i < MANY; i++) MPI_Isend(small, SHORT, MPI_BYTE, partner(), TAG, MPI_COMM_WORLD, &requests[i]);
        MPI_Request large;
        MPI_Isend(out, LARGE, MPI_BYTE, partner(), TAG + 1, MPI_COMM_WORLD, &large);
        for (int flag = 0; !flag;) MPI_Test(&large, &flag, MPI_STATUS_IGNORE);
        MPI_Waitall(MANY, requests, MPI_STATUSES_IGNORE);
    } else {
        for (int i = 0; i < MANY; i++) MPI_Recv(small, SHORT, MPI_BYTE, partner(), TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Recv(in, LARGE, MPI_BYTE, partner(), TAG + 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        CHECK(matches(in, LARGE, 5));
    }
    free(out);
    free(in);
    free(small);
}

const struct test_case completion[] = {
    {"any", any}, {"some", some}, {"all", all}, {"errors", errors}, {"persistent", persistent}, {"again", again}, {"cancelled", cancelled}, {"alone", alone}, {0},
};
