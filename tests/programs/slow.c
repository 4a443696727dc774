// slow CASE: registered memory that is out of the device's reach for a while.
//   late   a file of a filesystem (FUSE) that answers after more than a second: every kind of request waits for it, and a
//          neighbour does not
//   never  the same, and it does not answer: many queue pairs ask for it all the same, and end in errors
//   busy   another thread holds the lock of the address space again and again (mprotect of very much memory)
// Ends with 77 where the machine has not what that takes.
#define _GNU_SOURCE
#include "verbs.h"
#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum { LEN = 64 << 10, WORD_AT = 4096, ROUNDS = 200, QPS = 8, SEED = 5, AREAS = 16, SKIPPED = 77, MOST_READS = 256 };
// How long the pages are late at least, and how long a request may take to end.
static const double LATE = 1.2, LIMIT = 60;
static const int ACCESS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                          IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_ON_DEMAND;

// A filesystem of one file, its root, with AREAS areas of the same content. Reads wait as long as it is closed. While one
// does, the address space of the program cannot be changed.
static int fuse, file;
static char content[LEN];
static atomic_bool is_open;
static atomic_int asked;
static struct fuse_in_header waiting[MOST_READS];
static struct fuse_read_in reads[MOST_READS];

static void answer(uint64_t unique, int error, const void *data, size_t len) {
    struct fuse_out_header head = {.len = (uint32_t)(sizeof head + len), .error = -error, .unique = unique};
    struct iovec parts[] = {{&head, sizeof head}, {(void *)data, len}};
    // The kernel may have lost interest.
    if (writev(fuse, parts, 2) < 0) CHECK(errno == ENOENT);
}

static struct fuse_attr attributes(void) {
    return (struct fuse_attr){.ino = FUSE_ROOT_ID, .size = AREAS * LEN, .mode = S_IFREG | 0600, .nlink = 1, .blksize = 4096};
}

static void answer_read(int i) {
    static char data[AREAS * LEN];
    for (size_t at = 0; at < reads[i].size; at++) data[at] = content[(reads[i].offset + at) % LEN];
    answer(waiting[i].unique, 0, data, reads[i].size);
}

static void *serve(void *arg) {
    static char request[FUSE_MIN_READ_BUFFER + (1 << 20)];
    int answered = 0;
    (void)arg;
    for (;;) {
        for (; is_open && answered < asked; answered++) answer_read(answered);
        ssize_t len = read(fuse, request, sizeof request);
        if (len < 0 && (errno == EAGAIN || errno == EINTR || errno == ENOENT)) {
            usleep(1000);
            continue;
        }
        if (len < 0) return NULL;
        struct fuse_in_header *in = (struct fuse_in_header *)request;
        struct fuse_init_in *init = (struct fuse_init_in *)(in + 1);
        struct fuse_init_out started = {.major = FUSE_KERNEL_VERSION, .minor = init->minor, .max_write = 1 << 17};
        struct fuse_attr_out attr = {.attr_valid = 1000, .attr = attributes()};
        struct fuse_open_out opened = {.fh = 1};
        switch (in->opcode) {
        case FUSE_INIT: answer(in->unique, 0, &started, sizeof started); break;
        case FUSE_GETATTR: answer(in->unique, 0, &attr, sizeof attr); break;
        case FUSE_OPEN: answer(in->unique, 0, &opened, sizeof opened); break;
        case FUSE_READ:
            CHECK(asked < MOST_READS);
            waiting[asked] = *in;
            memcpy(&reads[asked], in + 1, sizeof reads[0]);
            asked++;
            break;
        case FUSE_FORGET:
        case FUSE_BATCH_FORGET:
        case FUSE_INTERRUPT: break;
        default: answer(in->unique, ENOSYS, NULL, 0);
        }
    }
}

static int skip(const char *what) {
    printf("skipped: %s: %s\n", what, strerror(errno));
    return SKIPPED;
}

// Makes the file; 0, or how the program ends without.
static int open_file(void) {
    char place[] = "/tmp/slow-XXXXXX", options[100];
    int at = mkstemp(place);
    CHECK(at >= 0 && close(at) == 0);
    fuse = open("/dev/fuse", O_RDWR | O_CLOEXEC | O_NONBLOCK);
    if (fuse < 0) return unlink(place), skip("/dev/fuse");
    snprintf(options, sizeof options, "fd=%d,rootmode=100000,user_id=%u,group_id=%u", fuse, getuid(), getgid());
    if (mount("slow", place, "fuse", MS_NOSUID | MS_NODEV, options) != 0) return unlink(place), skip("mount");
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, serve, NULL) == 0);
    file = open(place, O_RDWR | O_CLOEXEC);
    CHECK(file >= 0);
    // The file's size is asked for once. So is what closing it does, which is nothing: not even when the program ends, and
    // nobody is there to answer.
    struct stat status;
    CHECK(fstat(file, &status) == 0 && status.st_size == AREAS * LEN);
    CHECK(close(dup(file)) == 0);
    CHECK(umount2(place, MNT_DETACH) == 0 && unlink(place) == 0);
    fill(content, LEN, SEED);
    return 0;
}

// An area of the file. On-demand registration leaves it as it is.
struct lazy {
    char *at;
    struct ibv_mr *mr;
};

static struct lazy lazy_open(struct ibv_pd *pd) {
    static int areas;
    CHECK(areas < AREAS);
    struct lazy lazy = {.at = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, LEN * areas++)};
    CHECK(lazy.at != MAP_FAILED);
    CHECK(lazy.mr = ibv_reg_mr(pd, lazy.at, LEN, ACCESS), "on-demand registration");
    return lazy;
}

// Waits until more than `before` reads have come.
static void wait_asked(int before) {
    for (double end = now_seconds() + LIMIT; asked <= before; usleep(1000)) CHECK(now_seconds() < end, "nobody reads");
}

static void lazy_close(const struct lazy *lazy) {
    CHECK(ibv_dereg_mr(lazy->mr) == 0);
    munmap(lazy->at, LEN);
}

static void round_trips(struct side *c, struct side *d) {
    for (int i = 0; i < ROUNDS; i++) {
        struct ibv_sge to = {.addr = (uintptr_t)d->buffer, .length = 4096, .lkey = d->mr->lkey};
        post_recv(d, 1, &to, 1);
        struct request r;
        post_send(c, &request(&r, c, IBV_WR_SEND, 0, 4096)->wr);
        expect_wc(c->cq, IBV_WC_SUCCESS);
        expect_wc(d->cq, IBV_WC_SUCCESS);
    }
}

// A kind of request, and which end's memory is late.
struct kind {
    const char *name;
    enum ibv_wr_opcode opcode;
    bool is_late_here;
};

static const struct kind KINDS[] = {
    {"send from", IBV_WR_SEND, true},        {"send to", IBV_WR_SEND, false},
    {"write from", IBV_WR_RDMA_WRITE, true}, {"write to", IBV_WR_RDMA_WRITE, false},
    {"read to", IBV_WR_RDMA_READ, true},     {"read from", IBV_WR_RDMA_READ, false},
    {"add, answered to", IBV_WR_ATOMIC_FETCH_AND_ADD, true},
    {"add to", IBV_WR_ATOMIC_FETCH_AND_ADD, false},
};

// A request of `a` over its own memory, or the late one in its place.
static void ask(struct side *a, struct side *b, const struct lazy *lazy, const struct kind *kind) {
    bool is_add = kind->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD, here = kind->is_late_here;
    size_t offset = is_add ? WORD_AT : 0;
    struct ibv_sge sge = {.addr = (uintptr_t)((here ? lazy->at : a->buffer) + offset), .length = is_add ? 8 : LEN,
                          .lkey = here ? lazy->mr->lkey : a->mr->lkey};
    struct ibv_send_wr wr = {.wr_id = 7, .sg_list = &sge, .num_sge = 1, .opcode = kind->opcode,
                             .send_flags = IBV_SEND_SIGNALED};
    uint64_t addr = (uintptr_t)((here ? b->buffer : lazy->at) + offset);
    uint32_t rkey = here ? b->mr->rkey : lazy->mr->rkey;
    if (is_add) {
        wr.wr.atomic.remote_addr = addr;
        wr.wr.atomic.rkey = rkey;
        wr.wr.atomic.compare_add = 3;
    } else {
        wr.wr.rdma.remote_addr = addr;
        wr.wr.rdma.rkey = rkey;
    }
    if (kind->opcode == IBV_WR_SEND) {
        struct ibv_sge to = {.addr = (uintptr_t)(here ? b->buffer : lazy->at), .length = LEN,
                             .lkey = here ? b->mr->lkey : lazy->mr->lkey};
        post_recv(b, 8, &to, 1);
    }
    post_send(a, &wr);
}

static void late(struct side *a, struct side *b, struct side *c, struct side *d, const struct kind *kind) {
    struct lazy lazy = lazy_open(kind->is_late_here ? a->pd : b->pd);
    struct side *other = kind->is_late_here ? b : a;
    bool is_add = kind->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
    bool goes_to_other = kind->is_late_here != (kind->opcode == IBV_WR_RDMA_READ);
    memset(other->buffer, 0, LEN);
    if (!goes_to_other) fill(other->buffer, LEN, SEED + 1);
    uint64_t before, found, left;
    memcpy(&before, (kind->is_late_here ? other->buffer : content) + WORD_AT, sizeof before);
    int reads_before = asked;
    is_open = false;
    ask(a, b, &lazy, kind);
    wait_asked(reads_before);
    double start = now_seconds();
    do {
        round_trips(c, d);
        expect_nothing(a->cq);
    } while (now_seconds() < start + LATE);
    is_open = true;
    struct ibv_wc wc = poll_one(a->cq, LIMIT);
    CHECK(wc.status == IBV_WC_SUCCESS, "%s: %s", kind->name, ibv_wc_status_str(wc.status));
    if (kind->opcode == IBV_WR_SEND) expect_wc(b->cq, IBV_WC_SUCCESS);
    const char *here = kind->is_late_here ? lazy.at : other->buffer, *there = kind->is_late_here ? other->buffer : lazy.at;
    memcpy(&found, here + WORD_AT, sizeof found);
    memcpy(&left, there + WORD_AT, sizeof left);
    if (is_add) CHECK(found == before && left == before + 3, "%s", kind->name);
    else CHECK(memcmp(lazy.at, other->buffer, LEN) == 0, "%s", kind->name);
    lazy_close(&lazy);
    printf("%s late memory waits\n", kind->name);
}

static int case_late(void) {
    int skipped = open_file();
    if (skipped) return skipped;
    struct options options = default_options(IBV_QPT_RC);
    struct side a, b, c, d;
    open_pair(&a, &b, &options);
    open_pair(&c, &d, &options);
    for (size_t i = 0; i < sizeof KINDS / sizeof *KINDS; i++) late(&a, &b, &c, &d, &KINDS[i]);
    close_pair(&a, &b);
    close_pair(&c, &d);
    return 0;
}

static int case_never(void) {
    int skipped = open_file();
    if (skipped) return skipped;
    struct options options = default_options(IBV_QPT_RC);
    static struct side a[QPS], b[QPS];
    static struct lazy lazies[QPS];
    for (int i = 0; i < QPS; i++) {
        open_pair(&a[i], &b[i], &options);
        lazies[i] = lazy_open(b[i].pd);
    }
    for (int i = 0; i < QPS; i++) ask(&a[i], &b[i], &lazies[i], &KINDS[3]);
    wait_asked(0);
    printf("asked\n");
    fflush(stdout);
    for (int i = 0; i < QPS; i++) {
        struct ibv_wc wc = poll_one(a[i].cq, LIMIT);
        CHECK(wc.status == IBV_WC_REM_ACCESS_ERR, "%s", ibv_wc_status_str(wc.status));
    }
    // The program ends while the router's threads still wait for its pages.
    _exit(0);
}

static atomic_bool is_done;
static atomic_int changes;
static const size_t HUGE_LEN = 64ull << 30;

// Changes the protection of HUGE_LEN bytes of zeros, which have entries in page tables and no pages, with pauses: a lock that
// is never free for as long as a copy waits for it ends in an error.
static void *change(void *at) {
    for (int write = 0; !is_done; write = !write, changes++) {
        CHECK(mprotect(at, HUGE_LEN, write ? PROT_READ | PROT_WRITE : PROT_READ) == 0);
        usleep(300000);
    }
    return NULL;
}

static int case_busy(void) {
    struct options options = default_options(IBV_QPT_RC);
    struct side a, b;
    open_pair(&a, &b, &options);
    char *private = mmap(NULL, LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    fill(private, LEN, SEED);
    struct lazy lazy = {private, ibv_reg_mr(b.pd, private, LEN, ACCESS)};
    CHECK(lazy.mr, "on-demand registration");
    char *at = mmap(NULL, HUGE_LEN, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) return skip("reserving memory");
    CHECK(madvise(at, HUGE_LEN, MADV_NOHUGEPAGE) == 0);
    if (madvise(at, HUGE_LEN, MADV_POPULATE_READ) != 0) return skip("page tables");
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, change, at) == 0);
    for (int i = 0; i < 8; i++) {
        for (int before = changes; changes == before;) usleep(1000);
        ask(&a, &b, &lazy, &KINDS[5]);
        struct ibv_wc wc = poll_one(a.cq, LIMIT);
        CHECK(wc.status == IBV_WC_SUCCESS, "%s in round %d", ibv_wc_status_str(wc.status), i);
        CHECK(matches(a.buffer, LEN, SEED));
        memset(a.buffer, 0, LEN);
    }
    is_done = true;
    pthread_join(thread, NULL);
    printf("%d changes of protection\n", changes);
    lazy_close(&lazy);
    munmap(at, HUGE_LEN);
    close_pair(&a, &b);
    return 0;
}

int main(int argc, char **argv) {
    if (argc == 2 && strcmp(argv[1], "late") == 0) return case_late();
    if (argc == 2 && strcmp(argv[1], "never") == 0) return case_never();
    if (argc == 2 && strcmp(argv[1], "busy") == 0) return case_busy();
    fprintf(stderr, "usage: slow late|never|busy\n");
    return 2;
}
