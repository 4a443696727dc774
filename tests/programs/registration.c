// registration [threads [rounds]]: what ibv_reg_mr and ibv_dereg_mr take, in microseconds: for memory that was written to and never
// registered (first), for memory that had been (again), and to deregister (end). `threads` more threads wait meanwhile.
// With `rounds`, only registers and deregisters the same memory that often.
#include "verbs.h"
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { FIRST, AGAIN, END, KINDS };
static const char *const NAMES[KINDS] = {"first", "again", "end"};
static const int ACCESS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;

static void *wait_for_ever(void *arg) {
    poll(NULL, 0, -1);
    return arg;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double median(double *values, int count) {
    qsort(values, (size_t)count, sizeof *values, by_value);
    return values[count / 2];
}

static void measure(struct ibv_pd *pd, size_t len, int rounds) {
    double *times[KINDS];
    for (int kind = 0; kind < KINDS; kind++) times[kind] = calloc((size_t)rounds, sizeof(double));
    for (int round = 0; round < rounds; round++) {
        char *at = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(at != MAP_FAILED);
        memset(at, 1, len);
        for (int kind = FIRST; kind <= AGAIN; kind++) {
            double begin = now_seconds();
            struct ibv_mr *mr = ibv_reg_mr(pd, at, len, ACCESS);
            double middle = now_seconds();
            CHECK(mr);
            CHECK(ibv_dereg_mr(mr) == 0);
            times[kind][round] = middle - begin;
            times[END][round] = now_seconds() - middle;
        }
        munmap(at, len);
    }
    for (int kind = 0; kind < KINDS; kind++) {
        printf("%s-%zu %.2f\n", NAMES[kind], len, median(times[kind], rounds) * 1e6);
        free(times[kind]);
    }
}

static void repeat(struct ibv_pd *pd, size_t len, int rounds) {
    char *at = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED);
    for (int round = 0; round < rounds; round++) {
        struct ibv_mr *mr = ibv_reg_mr(pd, at, len, ACCESS);
        CHECK(mr);
        CHECK(ibv_dereg_mr(mr) == 0);
    }
    munmap(at, len);
}

int main(int argc, char **argv) {
    for (int i = argc > 1 ? atoi(argv[1]) : 0; i > 0; i--) {
        pthread_t thread;
        CHECK(pthread_create(&thread, NULL, wait_for_ever, NULL) == 0);
    }
    struct ibv_context *context = open_device();
    struct ibv_pd *pd = ibv_alloc_pd(context);
    CHECK(pd);
    static const size_t SIZES[] = {4 << 10, 64 << 10, 1 << 20, 64 << 20};
    if (argc > 2) repeat(pd, 1 << 20, atoi(argv[2]));
    for (size_t i = 0; argc <= 2 && i < sizeof SIZES / sizeof *SIZES; i++) measure(pd, SIZES[i], SIZES[i] > 8 << 20 ? 5 : 101);
    CHECK(ibv_dealloc_pd(pd) == 0);
    CHECK(ibv_close_device(context) == 0);
    return 0;
}
