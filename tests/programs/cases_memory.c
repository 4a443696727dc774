// Registration of every kind of memory, and what the program may do with it meanwhile.
#define _GNU_SOURCE
#include "cases.h"
#include "verbs.h"
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static const int LOCAL_AND_REMOTE = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;

static struct ibv_mr *must_register(struct side *s, void *at, size_t len) {
    struct ibv_mr *mr = ibv_reg_mr(s->pd, at, len, LOCAL_AND_REMOTE);
    CHECK(mr, "%zu bytes at %p", len, at);
    return mr;
}

// `from` writes `len` bytes of a pattern to `at` on the other side.
static void write_to(struct side *from, void *at, uint32_t rkey, size_t len, uint64_t seed) {
    fill(from->buffer, len, seed);
    struct request r;
    request(&r, from, IBV_WR_RDMA_WRITE, 0, len)->wr.wr.rdma.remote_addr = (uintptr_t)at;
    r.wr.wr.rdma.rkey = rkey;
    post_send(from, &r.wr);
    expect_wc(from->cq, IBV_WC_SUCCESS);
}

// `from` reads `len` bytes at `at` of the other side and compares them with the pattern.
static void read_and_check(struct side *from, void *at, uint32_t rkey, size_t len, uint64_t seed) {
    memset(from->buffer, 0, len);
    struct request r;
    request(&r, from, IBV_WR_RDMA_READ, 0, len)->wr.wr.rdma.remote_addr = (uintptr_t)at;
    r.wr.wr.rdma.rkey = rkey;
    post_send(from, &r.wr);
    expect_wc(from->cq, IBV_WC_SUCCESS);
    CHECK(matches(from->buffer, len, seed));
}

// Both directions over `len` bytes of `b`'s memory at `at`, which `b` registers for it.
static void exercise(struct side *a, struct side *b, char *at, size_t len) {
    struct ibv_mr *mr = must_register(b, at, len);
    size_t n = len < 100000 ? len : 100000;
    fill(at, n, 11);
    read_and_check(a, at, mr->rkey, n, 11);
    write_to(a, at, mr->rkey, n, 12);
    CHECK(matches(at, n, 12));
    write_to(a, at + len - n, mr->rkey, n, 13);
    CHECK(matches(at + len - n, n, 13));
    CHECK(ibv_dereg_mr(mr) == 0);
    CHECK(matches(at + len - n, n, 13), "content after deregistration");
    fill(at, n, 14);
    CHECK(matches(at, n, 14));
}

static void open_rc(struct side *a, struct side *b) {
    struct options o = default_options(IBV_QPT_RC);
    open_pair(a, b, &o);
}

// Bytes that the machine can give without swapping; 0 where it does not say.
static size_t available_memory(void) {
    FILE *file = fopen("/proc/meminfo", "r");
    char line[128];
    unsigned long kib = 0;
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        if (sscanf(line, "MemAvailable: %lu kB", &kib) == 1) break;
    }
    if (file != NULL) fclose(file);
    return (size_t)kib << 10;
}

int case_big_region(void) {
    size_t len = (size_t)5 << 30;
    if (available_memory() < len + (len >> 2)) {
        printf("skipped: needs 6.25 GiB of memory, %zu MiB are available\n", available_memory() >> 20);
        return SKIP;
    }
    struct side a, b;
    open_rc(&a, &b);
    char *at = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(at != MAP_FAILED);
    fill(at + ((size_t)9 << 29), 4096, 3); // touched before the registration
    struct ibv_mr *mr = must_register(&b, at, len);
    read_and_check(&a, at + ((size_t)9 << 29), mr->rkey, 4096, 3);
    CHECK(ibv_dereg_mr(mr) == 0);
    exercise(&a, &b, at, len);
    exercise(&a, &b, at + 1, len - 2);
    munmap(at, len);
    close_pair(&a, &b);
    return 0;
}

int case_huge_pages(void) {
    size_t len = 4 << 20;
    char *at = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
    if (at == MAP_FAILED) {
        printf("skipped: no huge pages (vm.nr_hugepages)\n");
        return SKIP;
    }
    struct side a, b;
    open_rc(&a, &b);
    exercise(&a, &b, at, len);
    exercise(&a, &b, at + 5000, len - 6000);
    close_pair(&a, &b);
    munmap(at, len);
    return 0;
}

int case_shared_mapping(void) {
    struct side a, b;
    open_rc(&a, &b);
    size_t len = 1 << 20;
    int fd = memfd_create("shared", 0);
    CHECK(fd >= 0 && ftruncate(fd, (off_t)len) == 0);
    char *one = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    char *two = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(one != MAP_FAILED && two != MAP_FAILED);
    struct ibv_mr *mr = must_register(&b, one, len);
    write_to(&a, one + 10, mr->rkey, 5000, 21);
    CHECK(matches(one + 10, 5000, 21));
    CHECK(matches(two + 10, 5000, 21), "a shared mapping must stay shared");
    fill(two + 8192, 100, 22);
    read_and_check(&a, one + 8192, mr->rkey, 100, 22);
    CHECK(ibv_dereg_mr(mr) == 0);
    exercise(&a, &b, one, len);
    char *anonymous = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    exercise(&a, &b, anonymous, len);
    // A private mapping of a file: the file must not change.
    char *private = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    memset(two, 0x5a, len);
    exercise(&a, &b, private, len);
    for (size_t i = 0; i < len; i++) CHECK(two[i] == 0x5a);
    close_pair(&a, &b);
    return 0;
}

static char static_data[3 * 4096 + 50] = "initialised";

int case_odd_memory(void) {
    struct side a, b;
    open_rc(&a, &b);
    char on_stack[5000];
    exercise(&a, &b, on_stack, sizeof on_stack);
    exercise(&a, &b, static_data, sizeof static_data);
    for (size_t len = 1; len < 40000; len = len * 3 + 1) {
        char *heap = malloc(len + 16);
        memset(heap, 0x77, len + 16);
        exercise(&a, &b, heap + 5, len);
        for (size_t i = 0; i < 5; i++) CHECK(heap[i] == 0x77);
        for (size_t i = len + 5; i < len + 16; i++) CHECK(heap[i] == 0x77, "behind %zu bytes", len);
        free(heap);
    }
    // A region over several mappings of different kinds.
    size_t page = 4096;
    char *at = mmap(NULL, 8 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(mmap(at + 2 * page, 2 * page, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED);
    exercise(&a, &b, at + 100, 8 * page - 200);
    close_pair(&a, &b);
    return 0;
}

int case_read_only_memory(void) {
    struct side a, b;
    open_rc(&a, &b);
    size_t len = 8192;
    char *at = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    fill(at, len, 31);
    CHECK(mprotect(at, len, PROT_READ) == 0);
    struct ibv_mr *mr = ibv_reg_mr(b.pd, at, len, IBV_ACCESS_REMOTE_READ);
    CHECK(mr);
    read_and_check(&a, at, mr->rkey, len, 31);
    CHECK(ibv_dereg_mr(mr) == 0);
    errno = 0;
    CHECK(!ibv_reg_mr(b.pd, at, len, IBV_ACCESS_LOCAL_WRITE) && errno == EFAULT);
    munmap(at, len);
    errno = 0;
    CHECK(!ibv_reg_mr(b.pd, at, len, IBV_ACCESS_LOCAL_WRITE) && errno == EFAULT);
    errno = 0;
    CHECK(!ibv_reg_mr(b.pd, b.buffer, len, IBV_ACCESS_REMOTE_WRITE) && errno == EINVAL, "remote write needs local write");
    close_pair(&a, &b);
    return 0;
}

int case_overlapping_regions(void) {
    struct side a, b;
    open_rc(&a, &b);
    struct ibv_mr *inner = must_register(&b, b.buffer + 5001, 10000);
    struct ibv_mr *crossing = must_register(&b, b.buffer + 12000, 10000);
    write_to(&a, b.buffer + 12500, inner->rkey, 1000, 41);
    read_and_check(&a, b.buffer + 12500, crossing->rkey, 1000, 41);
    CHECK(ibv_dereg_mr(crossing) == 0);
    write_to(&a, b.buffer + 12500, inner->rkey, 1000, 42);
    CHECK(matches(b.buffer + 12500, 1000, 42));
    CHECK(ibv_dereg_mr(inner) == 0);
    write_to(&a, b.buffer + 12500, b.mr->rkey, 1000, 43);
    CHECK(matches(b.buffer + 12500, 1000, 43));
    // The same memory in two devices of the process.
    struct ibv_mr *other = must_register(&a, b.buffer, 4096);
    write_to(&a, b.buffer, b.mr->rkey, 4096, 44);
    write_to(&b, b.buffer + 100, other->rkey, 0, 0);
    CHECK(matches(b.buffer, 4096, 44));
    CHECK(ibv_dereg_mr(other) == 0);
    close_pair(&a, &b);
    return 0;
}

int case_register_often(void) {
    struct side a, b;
    open_rc(&a, &b);
    char *at = malloc(300000);
    for (unsigned i = 0; i < 1500; i++) {
        char *start = at + (i * 7919) % 100000;
        size_t len = 1 + (i * 104729) % 190000;
        struct ibv_mr *mr = must_register(&b, start, len);
        size_t n = len < 64 ? len : 64;
        write_to(&a, start + len - n, mr->rkey, n, i);
        CHECK(matches(start + len - n, n, i), "registration %u", i);
        CHECK(ibv_dereg_mr(mr) == 0);
    }
    struct ibv_mr *many[500];
    for (int i = 0; i < 500; i++) many[i] = must_register(&b, at + i, 1000);
    for (int i = 0; i < 500; i++) write_to(&a, at + i, many[i]->rkey, 16, (uint64_t)i);
    for (int i = 0; i < 500; i++) CHECK(ibv_dereg_mr(many[i]) == 0);
    free(at);
    close_pair(&a, &b);
    return 0;
}

int case_unmapped_and_reused(void) {
    struct side a, b;
    open_rc(&a, &b);
    size_t len = 64 * 4096;
    for (uint64_t i = 0; i < 50; i++) {
        char *at = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(at != MAP_FAILED && all_zero(at, len), "fresh memory must be zero");
        struct ibv_mr *mr = must_register(&b, at, len);
        write_to(&a, at + 4096, mr->rkey, 8192, i);
        CHECK(matches(at + 4096, 8192, i));
        if (i & 1) CHECK(ibv_dereg_mr(mr) == 0);
        munmap(at, len); // an even round unmaps what is still registered
        if (!(i & 1)) {
            char *again = mmap(at, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
            CHECK(again == at && all_zero(again, len), "memory mapped at a registered address must be fresh");
            CHECK(ibv_dereg_mr(mr) == 0);
            exercise(&a, &b, again, len);
            munmap(again, len);
        }
    }
    close_pair(&a, &b);
    return 0;
}

int case_deregister_in_use(void) {
    struct side a, b;
    open_rc(&a, &b);
    struct ibv_mr *mr = must_register(&b, b.buffer, 1 << 19);
    for (int i = 0; i < 32; i++) {
        struct request r;
        request(&r, &a, IBV_WR_RDMA_WRITE, 0, 1 << 19)->wr.wr.rdma.rkey = mr->rkey;
        r.wr.wr_id = (uint64_t)i;
        post_send(&a, &r.wr);
    }
    CHECK(ibv_dereg_mr(mr) == 0);
    bool failed = false;
    for (uint64_t i = 0; i < 32; i++) {
        struct ibv_wc wc = poll_one(a.cq, 20);
        CHECK(wc.wr_id == i);
        enum ibv_wc_status want = !failed && wc.status ? IBV_WC_REM_ACCESS_ERR : failed ? IBV_WC_WR_FLUSH_ERR : IBV_WC_SUCCESS;
        CHECK(wc.status == want, "%s", ibv_wc_status_str(wc.status));
        failed |= wc.status != IBV_WC_SUCCESS;
    }
    close_pair(&a, &b);
    return 0;
}

static void wait_for_child(pid_t child) {
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child saw something wrong: status %x", status);
}

static void step(int fd) {
    CHECK(write(fd, "x", 1) == 1);
}

static void await(int fd) {
    char c;
    CHECK(read(fd, &c, 1) == 1);
}

// After fork() the registered pages, and the rest of partly registered ones, are the child's own copies.
int case_fork_isolation(void) {
    struct side a, b;
    open_rc(&a, &b);
    char *at = mmap(NULL, 4 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    fill(at, 4 * 4096, 50);
    struct ibv_mr *mr = must_register(&b, at + 1000, 2 * 4096); // the first and the third page only in part
    int to_child[2], to_parent[2];
    CHECK(pipe(to_child) == 0 && pipe(to_parent) == 0);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        CHECK(matches(at, 4 * 4096, 50), "content at the fork");
        step(to_parent[1]);
        await(to_child[0]);
        CHECK(matches(at, 4 * 4096, 50), "the parent's writes must not show");
        memset(at, 0xcc, 4 * 4096);
        step(to_parent[1]);
        await(to_child[0]);
        for (int i = 0; i < 4 * 4096; i++) CHECK(at[i] == (char)0xcc);
        _exit(0);
    }
    await(to_parent[0]);
    fill(at, 4 * 4096, 51);
    write_to(&a, at + 1000, mr->rkey, 5000, 52);
    step(to_child[1]);
    await(to_parent[0]);
    CHECK(matches(at + 1000, 5000, 52), "the child's writes must not show in the region");
    char *expected = malloc(4 * 4096);
    fill(expected, 4 * 4096, 51);
    CHECK(memcmp(at, expected, 1000) == 0, "nor beside it");
    CHECK(memcmp(at + 6000, expected + 6000, 4 * 4096 - 6000) == 0, "nor behind it");
    write_to(&a, at + 1000, mr->rkey, 5000, 53);
    CHECK(matches(at + 1000, 5000, 53));
    step(to_child[1]);
    wait_for_child(child);
    read_and_check(&a, at + 1000, mr->rkey, 5000, 53);
    free(expected);
    CHECK(ibv_dereg_mr(mr) == 0);
    close_pair(&a, &b);
    return 0;
}

int case_fork_child_opens_device(void) {
    struct side a, b;
    open_rc(&a, &b);
    exercise(&a, &b, static_data, sizeof static_data);
    for (int i = 0; i < 3; i++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            struct side c, d;
            open_rc(&c, &d);
            exercise(&c, &d, static_data, sizeof static_data);
            close_pair(&c, &d);
            _exit(0);
        }
        exercise(&a, &b, static_data, sizeof static_data);
        wait_for_child(child);
    }
    close_pair(&a, &b);
    return 0;
}

static atomic_bool forks_go_on;

static void *registers_all_the_time(void *side) {
    static char data[256 * 1024];
    while (forks_go_on) {
        struct ibv_mr *mr = must_register(side, data, sizeof data);
        CHECK(ibv_dereg_mr(mr) == 0);
    }
    return NULL;
}

// A program with a completion channel forks while another thread registers memory.
int case_fork_meets_commands(void) {
    struct options options = default_options(IBV_QPT_RC);
    options.events = true;
    struct side a, b;
    open_pair(&a, &b, &options);
    struct ibv_mr *mr = must_register(&a, static_data, sizeof static_data);
    forks_go_on = true;
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, registers_all_the_time, &a) == 0);
    for (int i = 0; i < 100; i++) {
        alarm(20); // a fork that waits for itself would wait for ever
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) _exit(0);
        wait_for_child(child);
    }
    alarm(0);
    forks_go_on = false;
    CHECK(pthread_join(thread, NULL) == 0);
    CHECK(ibv_dereg_mr(mr) == 0);
    close_pair(&a, &b);
    return 0;
}

enum { SPOTS = 1500, SPOT = 3 * 4096 };

struct writer {
    char *base;                 // SPOTS stretches of memory
    size_t offset;              // of the word, within a stretch
    volatile size_t *current;   // the stretch to write to; SPOTS to stop
    uint64_t counts[SPOTS];     // increments made
};

static void *write_on(void *argument) {
    struct writer *w = argument;
    for (size_t i; (i = *w->current) < SPOTS;) {
        volatile uint64_t *word = (uint64_t *)(w->base + i * SPOT + w->offset);
        *word = *word + 1;
        w->counts[i]++;
    }
    return NULL;
}

// Other threads write to the rest of a page while a part of it is registered: no write may be lost.
int case_neighbour_writers(void) {
    struct side a, b;
    open_rc(&a, &b);
    char *base = mmap(NULL, (size_t)SPOTS * SPOT, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(base != MAP_FAILED);
    volatile size_t current = 0;
    static struct writer writers[2];
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) {
        writers[i] = (struct writer){.base = base, .offset = i ? SPOT - 8 : 0, .current = &current};
        pthread_create(&threads[i], NULL, write_on, &writers[i]);
    }
    for (size_t i = 0; i < SPOTS; current = ++i) {
        char *at = base + i * SPOT + 64;
        struct ibv_mr *mr = must_register(&b, at, SPOT - 128);
        write_to(&a, at, mr->rkey, SPOT - 128, i);
        CHECK(matches(at, SPOT - 128, i));
        CHECK(ibv_dereg_mr(mr) == 0);
    }
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    for (size_t spot = 0; spot < SPOTS; spot++)
        for (int i = 0; i < 2; i++) {
            uint64_t word = *(uint64_t *)(base + spot * SPOT + writers[i].offset);
            CHECK(word == writers[i].counts[spot], "spot %zu, writer %d: %llu of %llu writes survived", spot, i,
                  (unsigned long long)word, (unsigned long long)writers[i].counts[spot]);
        }
    close_pair(&a, &b);
    return 0;
}
