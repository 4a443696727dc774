// One-sided access to windows, with each way of synchronisation.
#include "check.h"
#include <stdlib.h>
#include <string.h>

// A window over `len` zero bytes of our own memory.
struct window {
    MPI_Win win;
    char *memory;
};

static struct window make_window(size_t len, int unit) {
    struct window w = {.memory = allocate(len)};
    memset(w.memory, 0, len);
    MPI_Win_create(w.memory, (MPI_Aint)len, unit, MPI_INFO_NULL, MPI_COMM_WORLD, &w.win);
    return w;
}

static void drop_window(struct window *w) {
    MPI_Win_free(&w->win);
    free(w->memory);
}

// Each rank's bytes go into a place of their own at every rank, and are fetched from there again.
static void fence(void) {
    static const size_t sizes[] = {1, 8, 4096, 30001, 2000000};
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        size_t len = sizes[k];
        struct window w = make_window(len * (size_t)size, 1);
        char *out = allocate(len), *in = allocate(len * (size_t)size);
        fill(out, len, seed_of(rank, 0, k));
        MPI_Win_fence(0, w.win);
        for (int r = 0; r < size; r++)
            MPI_Put(out, (int)len, MPI_BYTE, r, (MPI_Aint)(len * (size_t)rank), (int)len, MPI_BYTE, w.win);
        MPI_Win_fence(0, w.win);
        for (int r = 0; r < size; r++) CHECK(matches(w.memory + len * (size_t)r, len, seed_of(r, 0, k)));
        for (int r = 0; r < size; r++)
            MPI_Get(in + len * (size_t)r, (int)len, MPI_BYTE, r, (MPI_Aint)(len * (size_t)next_rank()), (int)len, MPI_BYTE, w.win);
        MPI_Win_fence(0, w.win);
        for (int r = 0; r < size; r++) CHECK(matches(in + len * (size_t)r, len, seed_of(next_rank(), 0, k)));
        drop_window(&w);
        free(out);
        free(in);
    }
}

static void accumulate(void) {
    enum { N = 1000 };
    struct window w = make_window(N * sizeof(int64_t), sizeof(int64_t));
    int64_t mine[N], *sums = (int64_t *)w.memory;
    for (int i = 0; i < N; i++) mine[i] = rank + i;
    MPI_Win_fence(0, w.win);
    for (int r = 0; r < size; r++) MPI_Accumulate(mine, N, MPI_INT64_T, r, 0, N, MPI_INT64_T, MPI_SUM, w.win);
    MPI_Win_fence(0, w.win);
    for (int i = 0; i < N; i++) CHECK(sums[i] == (int64_t)size * (size - 1) / 2 + (int64_t)size * i);
    drop_window(&w);
}

// All ranks count at rank 0; every number is given out once.
static void fetch_and_op(void) {
    enum { TIMES = 50 };
    struct window w = make_window(sizeof(int64_t) * (1 + TIMES * 64), sizeof(int64_t));
    int64_t one = 1, number = -1;
    CHECK(size <= 64);
    MPI_Win_lock_all(0, w.win);
    for (int i = 0; i < TIMES; i++) {
        MPI_Fetch_and_op(&one, &number, MPI_INT64_T, 0, 0, MPI_SUM, w.win);
        MPI_Win_flush(0, w.win);
        CHECK(number >= 0 && number < TIMES * size);
        MPI_Accumulate(&one, 1, MPI_INT64_T, 0, 1 + number, 1, MPI_INT64_T, MPI_SUM, w.win);
    }
    MPI_Win_unlock_all(w.win);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_lock(MPI_LOCK_SHARED, rank, 0, w.win);
    for (int i = 0; rank == 0 && i < TIMES * size; i++) CHECK(((int64_t *)w.memory)[1 + i] == 1);
    if (rank == 0) CHECK(*(int64_t *)w.memory == TIMES * size);
    MPI_Win_unlock(rank, w.win);
    drop_window(&w);
}

// Gives MPI the time to serve others: there are MPIs in which an operation on one's own window does not.
static void progress(void) {
    int there;
    MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &there, MPI_STATUS_IGNORE);
}

// A lock of our own out of compare-and-swap guards a counter that is read and written plainly.
static void compare_and_swap(void) {
    enum { TIMES = 10 };
    struct window w = make_window(2 * sizeof(int64_t), sizeof(int64_t));
    int64_t free_lock = 0, my_lock = rank + 1, found, value;
    MPI_Win_lock_all(0, w.win);
    for (int i = 0; i < TIMES; i++) {
        do {
            MPI_Compare_and_swap(&my_lock, &free_lock, &found, MPI_INT64_T, 0, 0, w.win);
            MPI_Win_flush(0, w.win);
            progress();
        } while (found != 0);
        MPI_Get(&value, 1, MPI_INT64_T, 0, 1, 1, MPI_INT64_T, w.win);
        MPI_Win_flush(0, w.win);
        value++;
        MPI_Put(&value, 1, MPI_INT64_T, 0, 1, 1, MPI_INT64_T, w.win);
        MPI_Win_flush(0, w.win);
        MPI_Compare_and_swap(&free_lock, &my_lock, &found, MPI_INT64_T, 0, 0, w.win);
        MPI_Win_flush(0, w.win);
        CHECK(found == my_lock);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Get(&value, 1, MPI_INT64_T, 0, 1, 1, MPI_INT64_T, w.win);
    MPI_Win_unlock_all(w.win);
    CHECK(value == TIMES * size);
    drop_window(&w);
}

// Under an exclusive lock a read and a write of others' memory are one.
static void exclusive_lock(void) {
    enum { TIMES = 10 };
    struct window w = make_window(sizeof(int64_t), sizeof(int64_t));
    int64_t value;
    for (int i = 0; i < TIMES; i++) {
        for (int target = 0; target < size; target++) {
            MPI_Win_lock(MPI_LOCK_EXCLUSIVE, target, 0, w.win);
            MPI_Get(&value, 1, MPI_INT64_T, target, 0, 1, MPI_INT64_T, w.win);
            MPI_Win_flush(target, w.win);
            value += 1 + target;
            MPI_Put(&value, 1, MPI_INT64_T, target, 0, 1, MPI_INT64_T, w.win);
            MPI_Win_unlock(target, w.win);
        }
    }
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_lock(MPI_LOCK_SHARED, next_rank(), 0, w.win);
    MPI_Get(&value, 1, MPI_INT64_T, next_rank(), 0, 1, MPI_INT64_T, w.win);
    MPI_Win_unlock(next_rank(), w.win);
    CHECK(value == (int64_t)TIMES * size * (1 + next_rank()));
    drop_window(&w);
}

// Only neighbours synchronise: each is open to the one before it and accesses the one after it.
static void post_start(void) {
    enum { LEN = 100000 };
    struct window w = make_window(LEN, 1);
    char *out = allocate(LEN);
    MPI_Group all, before, after;
    int previous = previous_rank(), next = next_rank();
    MPI_Comm_group(MPI_COMM_WORLD, &all);
    MPI_Group_incl(all, 1, &previous, &before);
    MPI_Group_incl(all, 1, &next, &after);
    for (uint64_t i = 0; i < 5; i++) {
        fill(out, LEN, seed_of(rank, next, i));
        MPI_Win_post(before, 0, w.win);
        MPI_Win_start(after, 0, w.win);
        MPI_Put(out, LEN, MPI_BYTE, next, 0, LEN, MPI_BYTE, w.win);
        MPI_Win_complete(w.win);
        MPI_Win_wait(w.win);
        CHECK(matches(w.memory, LEN, seed_of(previous, rank, i)));
    }
    MPI_Group_free(&all);
    MPI_Group_free(&before);
    MPI_Group_free(&after);
    drop_window(&w);
    free(out);
}

// Memory that MPI allocates itself, and operations with requests.
static void requests(void) {
    enum { LEN = 300000 };
    char *memory, *out = allocate(LEN), *in = allocate(LEN);
    MPI_Win win;
    MPI_Request request;
    MPI_Win_allocate(LEN, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &memory, &win);
    fill(out, LEN, seed_of(rank, next_rank(), 9));
    MPI_Win_lock_all(0, win);
    MPI_Rput(out, LEN, MPI_BYTE, next_rank(), 0, LEN, MPI_BYTE, win, &request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    MPI_Win_flush(next_rank(), win);
    MPI_Rget(in, LEN, MPI_BYTE, next_rank(), 0, LEN, MPI_BYTE, win, &request);
    MPI_Wait(&request, MPI_STATUS_IGNORE);
    CHECK(memcmp(in, out, LEN) == 0);
    MPI_Win_sync(win);
    MPI_Barrier(MPI_COMM_WORLD);
    MPI_Win_sync(win);
    CHECK(matches(memory, LEN, seed_of(previous_rank(), rank, 9)));
    MPI_Win_unlock_all(win);
    MPI_Win_free(&win);
    free(out);
    free(in);
}

const struct test_case windows[] = {
    {"fence", fence},
    {"accumulate", accumulate},
    {"fetch-and-op", fetch_and_op},
    {"compare-and-swap", compare_and_swap},
    {"exclusive-lock", exclusive_lock},
    {"post-start", post_start},
    {"window-requests", requests},
    {0},
};
