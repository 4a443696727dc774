// Memory of messages: buffers that come and go, of every kind, at the same addresses with other pages.
#define _GNU_SOURCE
#include "check.h"
#include <fcntl.h>
#include <malloc.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { TAG = 8, LEN = 100000, PAGE = 4096 };

static int partner(void) { return (rank + size / 2) % size; }

static char *map_at(void *where, size_t len, int flags) {
    char *at = mmap(where, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
    CHECK(at != MAP_FAILED);
    return at;
}

// Sends `out` and receives into `in`; what comes is checked.
static void exchange(const char *out, char *in, size_t len, uint64_t mine, uint64_t theirs) {
    (void)mine;
    MPI_Sendrecv(out, (int)len, MPI_BYTE, partner(), TAG, in, (int)len, MPI_BYTE, partner(), TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    CHECK(matches(in, len, theirs));
}

// The same addresses again and again, each time with other pages under them.
static void replaced(void) {
    size_t len = 32 * PAGE;
    char *out = map_at(NULL, len, 0), *in = map_at(NULL, len, 0);
    for (uint64_t round = 0; round < 60; round++) {
        switch (round % 6) {
        case 0:
            munmap(out, len);
            munmap(in, len);
            map_at(out, len, MAP_FIXED);
            map_at(in, len, MAP_FIXED);
            break;
        case 1:
            map_at(out, len, MAP_FIXED);
            map_at(in, len, MAP_FIXED);
            break;
        case 2:
            madvise(out, len, MADV_DONTNEED);
            madvise(in, len, MADV_DONTNEED);
            break;
        case 3: {
            char *moved = mremap(out, len, len, MREMAP_MAYMOVE | MREMAP_FIXED, map_at(NULL, len, 0));
            CHECK(moved != MAP_FAILED);
            map_at(out, len, MAP_FIXED);
            munmap(moved, len);
            break;
        }
        case 4:
            munmap(in + 8 * PAGE, 4 * PAGE);
            map_at(in + 8 * PAGE, 4 * PAGE, MAP_FIXED);
            munmap(out + 31 * PAGE, PAGE);
            map_at(out + 31 * PAGE, PAGE, MAP_FIXED);
            break;
        }
        uint64_t mine = seed_of(rank, partner(), round), theirs = seed_of(partner(), rank, round);
        fill(out, len, mine);
        exchange(out, in, len, mine, theirs);
    }
    munmap(out, len);
    munmap(in, len);
}

// Buffers of the allocator, of changing sizes, at most of which it gives back to the kernel.
static void allocated(void) {
    mallopt(M_MMAP_THRESHOLD, 64 << 10);
    mallopt(M_TRIM_THRESHOLD, 0);
    uint64_t state = 1;
    char *kept[8] = {0};
    for (uint64_t round = 0; round < 300; round++) {
        state = state * 6364136223846793005 + 1442695040888963407;
        size_t len = 17000 + (state >> 40) % 150000;
        char *out = allocate(len), *in = allocate(len);
        int slot = (int)((state >> 33) % 8);
        free(kept[slot]);
        kept[slot] = allocate(len / 2);
        uint64_t mine = seed_of(rank, partner(), round), theirs = seed_of(partner(), rank, round);
        fill(out, len, mine);
        exchange(out, in, len, mine, theirs);
        free(in);
        free(out);
        if (round % 50 == 0) malloc_trim(0);
    }
    for (int i = 0; i < 8; i++) free(kept[i]);
}

// A window that moves through one large buffer, and reaches over registered and new pages.
static void windows_of_one(void) {
    size_t all = 4 << 20;
    char *out = allocate(all), *in = allocate(all);
    for (uint64_t round = 0; round < 50; round++) {
        size_t offset = round * 70001 % (all - LEN), other = round * 50021 % (all - LEN);
        uint64_t mine = seed_of(rank, partner(), round), theirs = seed_of(partner(), rank, round);
        fill(out + offset, LEN, mine);
        exchange(out + offset, in + other, LEN, mine, theirs);
    }
    free(out);
    free(in);
}

// Memory that cannot be written, that is a file's, that is the stack's or shared.
static void kinds(void) {
    enum { FILE_LEN = 25 * PAGE };
    char path[] = "/tmp/mpi-memory-XXXXXX";
    int fd = mkstemp(path);
    CHECK(fd >= 0 && ftruncate(fd, FILE_LEN) == 0);
    unlink(path);
    char stack[FILE_LEN];
    char *in = allocate(FILE_LEN);
    char *shared = mmap(NULL, FILE_LEN, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    char *constant = map_at(NULL, FILE_LEN, 0);
    char *anonymous = mmap(NULL, FILE_LEN, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(shared != MAP_FAILED && anonymous != MAP_FAILED);
    for (uint64_t round = 0; round < 8; round++) {
        uint64_t mine = seed_of(rank, partner(), round), theirs = seed_of(partner(), rank, round);
        char *out = (char *[]){shared, constant, stack, anonymous}[round % 4];
        char *to = (char *[]){in, shared, anonymous, stack}[round % 4];
        CHECK(mprotect(constant, FILE_LEN, PROT_READ | PROT_WRITE) == 0);
        fill(out, FILE_LEN, mine);
        CHECK(mprotect(constant, FILE_LEN, PROT_READ) == 0);
        exchange(out, to, FILE_LEN, mine, theirs);
    }
    munmap(shared, FILE_LEN);
    munmap(constant, FILE_LEN);
    munmap(anonymous, FILE_LEN);
    close(fd);
    free(in);
}

// A child process goes its own way with its copy of the memory.
static void forked(void) {
    char *out = map_at(NULL, 25 * PAGE, 0), *in = allocate(LEN);
    for (uint64_t round = 0; round < 5; round++) {
        uint64_t mine = seed_of(rank, partner(), round), theirs = seed_of(partner(), rank, round);
        fill(out, LEN, mine);
        if (fork() == 0) {
            memset(out, 0, LEN);
            munmap(out, PAGE);
            _exit(0);
        }
        exchange(out, in, LEN, mine, theirs);
    }
    munmap(out, 25 * PAGE);
    free(in);
}

const struct test_case memory[] = {
    {"replaced", replaced}, {"allocated", allocated}, {"windows-of-one", windows_of_one}, {"kinds", kinds}, {"forked", forked}, {0},
};
