// conversion [--no-userfaultfd] CASE: what the conversion of pages at registration must not do to the rest of the program.
// With the option userfaultfd is refused, as in a container: then threads are stopped instead.
#define _GNU_SOURCE
#include "verbs.h"
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/futex.h>
#include <linux/io_uring.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const int ACCESS = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
static struct ibv_pd *pd;
static atomic_bool done;
static atomic_int ready;

static char *fresh(size_t len) {
    char *at = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED);
    return at;
}

static void convert(void *at, size_t len) {
    struct ibv_mr *mr = ibv_reg_mr(pd, at, len, ACCESS);
    CHECK(mr, "%zu bytes at %p: %s", len, at, strerror(errno));
    CHECK(ibv_dereg_mr(mr) == 0);
}

static pthread_t start(void *(*run)(void *), void *argument) {
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, run, argument) == 0);
    return thread;
}

static void wait_ready(int threads) {
    while (atomic_load(&ready) < threads) sched_yield();
}

// Calls that end with EINTR after any signal handler.

static void no_eintr(const char *call, long result) {
    CHECK(result != -1 || errno != EINTR, "%s was cut off", call);
}

static void *in_poll(void *arg) {
    while (!done) no_eintr("poll", poll(NULL, 0, 3));
    return arg;
}

static void *in_epoll(void *arg) {
    int fd = epoll_create1(0);
    struct epoll_event event;
    while (!done) no_eintr("epoll_wait", epoll_wait(fd, &event, 1, 3));
    return arg;
}

static void *in_select(void *arg) {
    while (!done) {
        struct timeval timeout = {.tv_usec = 3000};
        no_eintr("select", select(0, NULL, NULL, NULL, &timeout));
    }
    return arg;
}

static void *in_sleep(void *arg) {
    while (!done) no_eintr("nanosleep", nanosleep(&(struct timespec){.tv_nsec = 3000000}, NULL));
    return arg;
}

static void *in_usleep(void *arg) {
    while (!done) no_eintr("usleep", usleep(3000));
    return arg;
}

static void *in_recv(void *arg) {
    int ends[2];
    char byte;
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    struct timeval timeout = {.tv_usec = 5000};
    CHECK(setsockopt(ends[0], SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout) == 0);
    while (!done) no_eintr("recv", recv(ends[0], &byte, 1, 0));
    return arg;
}

static void *in_semaphore(void *arg) {
    sem_t semaphore;
    sem_init(&semaphore, 0, 0);
    while (!done) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += 3000000;
        if (until.tv_nsec >= 1000000000) until.tv_sec++, until.tv_nsec -= 1000000000;
        no_eintr("sem_timedwait", sem_timedwait(&semaphore, &until));
    }
    return arg;
}

static void *in_futex(void *arg) {
    int word = 0;
    while (!done) no_eintr("futex", syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 0, &(struct timespec){.tv_nsec = 3000000}, NULL, 0));
    return arg;
}

static int case_calls(void) {
    void *(*const waits[])(void *) = {in_poll, in_epoll, in_select, in_sleep, in_usleep, in_recv, in_semaphore, in_futex};
    enum { COUNT = sizeof waits / sizeof *waits };
    pthread_t threads[COUNT];
    for (int i = 0; i < COUNT; i++) threads[i] = start(waits[i], NULL);
    for (int i = 0; i < 300; i++) {
        char *at = fresh(1 << 16);
        memset(at, 1, 1 << 16);
        convert(at, 1 << 16);
        munmap(at, 1 << 16);
    }
    done = true;
    for (int i = 0; i < COUNT; i++) pthread_join(threads[i], NULL);
    return 0;
}

// System calls that write to the pages.

enum { READ_LEN = 4 << 20 };

struct reader {
    int file;
    char *at;
};

static void is_whole(const char *call, ssize_t len) {
    CHECK(len == READ_LEN, "%s: %zd, %s", call, len, len < 0 ? strerror(errno) : "short");
}

static void *in_read(void *arg) {
    struct reader *reader = arg;
    while (!done) {
        is_whole("pread", pread(reader->file, reader->at, READ_LEN, 0));
        ready++;
    }
    CHECK(pread(reader->file, reader->at, READ_LEN, 0) == READ_LEN);
    return NULL;
}

// Devices and streams, whose transfers a signal ends early.

// Three parts of the reader's memory, one of them empty.
#define PARTS(reader)                                                                                                  \
    {                                                                                                                  \
        {(reader)->at, READ_LEN / 3}, {NULL, 0}, { (reader)->at + READ_LEN / 3, READ_LEN - READ_LEN / 3 }              \
    }

static void *in_zero(void *arg) {
    struct reader *reader = arg;
    struct iovec parts[] = PARTS(reader);
    while (!done) {
        is_whole("read", read(reader->file, reader->at, READ_LEN));
        is_whole("readv", readv(reader->file, parts, 3));
        is_whole("pread", pread(reader->file, reader->at, READ_LEN, 7));
        is_whole("preadv", preadv(reader->file, parts, 3, 7));
        ready++;
    }
    return NULL;
}

static void *in_write(void *arg) {
    struct reader *stream = arg;
    struct iovec parts[] = PARTS(stream);
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 3};
    while (!done) {
        is_whole("write", write(stream->file, stream->at, READ_LEN));
        is_whole("writev", writev(stream->file, parts, 3));
        is_whole("sendto", sendto(stream->file, stream->at, READ_LEN, 0, NULL, 0));
        is_whole("sendmsg", sendmsg(stream->file, &message, 0));
    }
    CHECK(shutdown(stream->file, SHUT_WR) == 0);
    return NULL;
}

static void *in_waitall(void *arg) {
    struct reader *stream = arg;
    ssize_t len;
    while ((len = recv(stream->file, stream->at, READ_LEN, MSG_WAITALL)) != 0) {
        is_whole("recv", len);
        CHECK(matches(stream->at, READ_LEN, 5));
        ready++;
    }
    return NULL;
}

static int case_transfers(void) {
    int ends[2];
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
    struct reader zero = {open("/dev/zero", O_RDONLY), fresh(READ_LEN)};
    struct reader from = {ends[0], fresh(READ_LEN)}, to = {ends[1], fresh(READ_LEN)};
    fill(from.at, READ_LEN, 5);
    pthread_t threads[] = {start(in_zero, &zero), start(in_write, &from), start(in_waitall, &to)};
    wait_ready(4);
    for (int i = 0; i < 300; i++) {
        char *at = fresh(1 << 16);
        memset(at, 1, 1 << 16);
        convert(at, 1 << 16);
        munmap(at, 1 << 16);
    }
    done = true;
    for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
    return 0;
}

static int case_reads(void) {
    struct reader reader = {.file = memfd_create("source", 0)};
    char *source = malloc(READ_LEN);
    fill(source, READ_LEN, 5);
    CHECK(write(reader.file, source, READ_LEN) == READ_LEN);
    for (int i = 0; i < 60; i++) {
        reader.at = fresh(READ_LEN);
        done = false;
        ready = 0;
        pthread_t thread = start(in_read, &reader);
        wait_ready(1);
        convert(reader.at, READ_LEN);
        done = true;
        pthread_join(thread, NULL);
        CHECK(matches(reader.at, READ_LEN, 5));
        munmap(reader.at, READ_LEN);
    }
    return 0;
}

// A handler that runs on a stack whose pages are converted.

static atomic_long handled;
static void on_signal(int number) { handled += number > 0; }

static void *signalled(void *arg) {
    // Away from where the thread's own area is, which is left alone.
    volatile char deep[1 << 16];
    deep[0] = 1;
    ready += deep[0];
    while (!done) sched_yield();
    return arg;
}

static void *send_signals(void *arg) {
    while (!done) {
        CHECK(pthread_kill(*(pthread_t *)arg, SIGUSR1) == 0);
        sched_yield();
    }
    return NULL;
}

static int case_signals(void) {
    CHECK(signal(SIGUSR1, on_signal) != SIG_ERR);
    enum { STACK = 16 << 20 };
    for (int i = 0; i < 40; i++) {
        char *stack = fresh(STACK);
        memset(stack, 1, STACK);
        pthread_attr_t attributes;
        pthread_attr_init(&attributes);
        CHECK(pthread_attr_setstack(&attributes, stack, STACK) == 0);
        pthread_t thread, sender;
        done = false;
        ready = 0;
        CHECK(pthread_create(&thread, &attributes, signalled, NULL) == 0);
        wait_ready(1);
        sender = start(send_signals, &thread);
        long before = handled;
        convert(stack, STACK);
        while (handled < before + 10) sched_yield();
        done = true;
        pthread_join(sender, NULL);
        pthread_join(thread, NULL);
        munmap(stack, STACK);
    }
    return 0;
}

// A semaphore between processes, used within one.

static void *in_shared_semaphore(void *arg) {
    ready++;
    CHECK(sem_wait(arg) == 0);
    return NULL;
}

static int case_futex(void) {
    for (int i = 0; i < 20; i++) {
        sem_t *semaphore = (sem_t *)fresh(4096);
        CHECK(sem_init(semaphore, 1, 0) == 0);
        ready = 0;
        pthread_t thread = start(in_shared_semaphore, semaphore);
        wait_ready(1);
        usleep(2000); // most likely asleep; if not, the case is only easier
        convert(semaphore, 4096);
        sem_post(semaphore);
        pthread_join(thread, NULL);
        munmap(semaphore, 4096);
    }
    return 0;
}

// Buffers that io_uring has pinned before.

struct ring {
    int fd;
    struct io_uring_params params;
    char *queues;
    struct io_uring_sqe *entries;
};

static bool ring_open(struct ring *ring) {
    memset(&ring->params, 0, sizeof ring->params);
    ring->fd = (int)syscall(SYS_io_uring_setup, 4, &ring->params);
    if (ring->fd < 0) return false;
    CHECK(ring->params.features & IORING_FEAT_SINGLE_MMAP);
    ring->queues = mmap(NULL, 1 << 16, PROT_READ | PROT_WRITE, MAP_SHARED, ring->fd, IORING_OFF_SQ_RING);
    ring->entries = mmap(NULL, 4 * sizeof *ring->entries, PROT_READ | PROT_WRITE, MAP_SHARED, ring->fd, IORING_OFF_SQES);
    CHECK(ring->queues != MAP_FAILED && ring->entries != MAP_FAILED);
    return true;
}

// Reads `len` bytes of `file` to `at`, which lies in the fixed buffer.
static void ring_read(struct ring *ring, int file, char *at, unsigned len) {
    unsigned *tail = (unsigned *)(ring->queues + ring->params.sq_off.tail);
    unsigned *array = (unsigned *)(ring->queues + ring->params.sq_off.array);
    unsigned *head = (unsigned *)(ring->queues + ring->params.cq_off.head);
    struct io_uring_cqe *done_at = (struct io_uring_cqe *)(ring->queues + ring->params.cq_off.cqes);
    ring->entries[0] = (struct io_uring_sqe){.opcode = IORING_OP_READ_FIXED, .fd = file, .addr = (uintptr_t)at, .len = len};
    array[*tail % 4] = 0;
    __atomic_store_n(tail, *tail + 1, __ATOMIC_RELEASE);
    CHECK(syscall(SYS_io_uring_enter, ring->fd, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0) == 1);
    CHECK(done_at[*head % ring->params.cq_entries].res == (int)len);
    __atomic_store_n(head, *head + 1, __ATOMIC_RELEASE);
}

static int case_iouring(void) {
    enum { LEN = 1 << 20 };
    struct ring ring;
    if (!ring_open(&ring)) {
        printf("skipped: no io_uring here (%s)\n", strerror(errno));
        return 0;
    }
    int file = memfd_create("source", 0);
    char *source = malloc(LEN);
    fill(source, LEN, 7);
    CHECK(write(file, source, LEN) == LEN);
    // Before the conversion, in the middle of what is registered.
    char *at = fresh(3 * LEN);
    memset(at, 1, 3 * LEN);
    struct iovec fixed = {at + LEN + 100, LEN};
    CHECK(syscall(SYS_io_uring_register, ring.fd, IORING_REGISTER_BUFFERS, &fixed, 1) == 0);
    struct ibv_mr *mr = ibv_reg_mr(pd, at, 3 * LEN, ACCESS);
    CHECK(mr);
    ring_read(&ring, file, fixed.iov_base, LEN);
    CHECK(matches(fixed.iov_base, LEN, 7), "what was read went elsewhere");
    CHECK(ibv_dereg_mr(mr) == 0);
    // After it.
    CHECK(syscall(SYS_io_uring_register, ring.fd, IORING_UNREGISTER_BUFFERS, NULL, 0) == 0);
    convert(at, 3 * LEN);
    CHECK(syscall(SYS_io_uring_register, ring.fd, IORING_REGISTER_BUFFERS, &fixed, 1) == 0);
    memset(at, 1, 3 * LEN);
    convert(at, 3 * LEN);
    ring_read(&ring, file, fixed.iov_base, LEN);
    CHECK(matches(fixed.iov_base, LEN, 7), "what was read went elsewhere");
    return 0;
}

// Ways to fork past fork().

static volatile char *shared_or_not;

// In the child: what the parent had, and then its own.
static int in_child(void *arg) {
    if (*shared_or_not != 1) return 1;
    *shared_or_not = 2;
    return arg == NULL ? 0 : 3;
}

static void expect_own_memory(const char *how, pid_t child) {
    if (child == 0) _exit(in_child(NULL));
    int status;
    CHECK(child > 0, "%s: %s", how, strerror(errno));
    CHECK(waitpid(child, &status, 0) == child && status == 0, "%s: status %x", how, status);
    CHECK(*shared_or_not == 1, "%s shares registered memory with the parent", how);
}

static int case_forks(void) {
    enum { STACK = 1 << 16 };
    char *at = fresh(4096), *stack = fresh(STACK);
    *at = 1;
    convert(at, 4096);
    convert(stack, STACK);
    shared_or_not = at;
    expect_own_memory("fork", fork());
    pid_t (*bare)(void) = (pid_t(*)(void))dlsym(RTLD_DEFAULT, "_Fork");
    if (bare) expect_own_memory("_Fork", bare());
    expect_own_memory("syscall(SYS_clone)", (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL));
    struct clone_args arguments = {.exit_signal = SIGCHLD};
    expect_own_memory("syscall(SYS_clone3)", (pid_t)syscall(SYS_clone3, &arguments, sizeof arguments));
    expect_own_memory("clone", clone(in_child, stack + STACK, SIGCHLD, NULL));
    expect_own_memory("fork, again", fork());
    return 0;
}

// What mappings have beyond their rights.

// Whether the kernel shows a line "name: value" with `value` as one of the words, for the mapping of `at`.
static bool mapping_has(void *at, const char *name, const char *value) {
    FILE *smaps = fopen("/proc/self/smaps", "r");
    CHECK(smaps);
    char line[4096];
    bool here = false, found = false;
    while (fgets(line, sizeof line, smaps)) {
        unsigned long from, to;
        if (sscanf(line, "%lx-%lx ", &from, &to) == 2) here = from <= (unsigned long)at && (unsigned long)at < to;
        if (here && strncmp(line, name, strlen(name)) == 0) {
            for (char *word = strtok(line + strlen(name), ": \n"); word; word = strtok(NULL, " \n")) found |= !strcmp(word, value);
        }
    }
    fclose(smaps);
    return found;
}

static int case_kept(void) {
    enum { LEN = 1 << 20 };
    char *at = fresh(LEN);
    CHECK(madvise(at, LEN, MADV_DONTDUMP) == 0);
    convert(at, LEN);
    CHECK(mapping_has(at, "VmFlags", "dd"), "MADV_DONTDUMP is gone");

    char *locked = fresh(LEN);
    if (mlock(locked, LEN) == 0) {
        convert(locked + 4096, LEN - 8192);
        CHECK(mapping_has(locked + 4096, "VmFlags", "lo"), "mlock is gone");
    } else {
        printf("mlock is not allowed here\n");
    }

    char *wiped = fresh(LEN);
    CHECK(madvise(wiped, LEN, MADV_WIPEONFORK) == 0);
    wiped[0] = 1;
    struct ibv_mr *mr = ibv_reg_mr(pd, wiped, LEN, ACCESS);
    CHECK(mr && mapping_has(wiped, "VmFlags", "wf"), "MADV_WIPEONFORK is gone");
    pid_t child = fork();
    if (child == 0) _exit(wiped[0]);
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0);

    char *bound = fresh(LEN);
    unsigned long nodes = 1, seen = 0;
    int mode = -1;
    if (syscall(SYS_mbind, bound, LEN, 2 /* MPOL_BIND */, &nodes, 64, 0) == 0) {
        memset(bound, 1, LEN);
        convert(bound, LEN);
        CHECK(syscall(SYS_get_mempolicy, &mode, &seen, 64, bound, 2 /* MPOL_F_ADDR */) == 0);
        CHECK(mode == 2 && seen == 1, "policy %d, nodes %lx", mode, seen);
    } else {
        printf("mbind is not allowed here\n");
    }

    char *keyed = fresh(LEN);
    int key = pkey_alloc(0, 0);
    if (key > 0 && pkey_mprotect(keyed, LEN, PROT_READ | PROT_WRITE, key) == 0) {
        char value[16];
        snprintf(value, sizeof value, "%d", key);
        convert(keyed, LEN);
        CHECK(mapping_has(keyed, "ProtectionKey", value), "the protection key is gone");
    } else {
        printf("no protection keys here\n");
    }
    return 0;
}

// Memory that libc's allocator gives back without a call that can be seen, and then hands out as zeros.

static void *in_heap(void *arg) {
    enum { COUNT = 200, LEN = 100000 };
    char *blocks[COUNT];
    for (int i = 0; i < COUNT; i++) {
        CHECK(blocks[i] = malloc(LEN));
        memset(blocks[i], 1, LEN);
        convert(blocks[i], LEN);
    }
    for (int i = COUNT - 1; i >= 0; i--) free(blocks[i]);
    for (int i = 0; i < COUNT; i++) {
        CHECK(blocks[i] = calloc(1, LEN));
        CHECK(all_zero(blocks[i], LEN));
    }
    return arg;
}

static int case_heap(void) {
    in_heap(NULL);
    pthread_join(start(in_heap, NULL), NULL);
    return 0;
}

// Memory that stays private, for which the router must reach into the process; and the end of that.
static int case_private(void) {
    char *at = fresh(4096);
    CHECK(mprotect(at, 4096, PROT_READ) == 0);
    struct ibv_mr *mr = ibv_reg_mr(pd, at, 4096, 0);
    CHECK(mr && ibv_dereg_mr(mr) == 0);
    struct ibv_context *context = pd->context;
    CHECK(ibv_dealloc_pd(pd) == 0 && ibv_close_device(context) == 0);
    return 0;
}

static void refuse_userfaultfd(void) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_userfaultfd, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        // The device's ioctl, USERFAULTFD_IOC_NEW.
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_ioctl, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[1])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 0xaa00, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = sizeof filter / sizeof *filter, .filter = filter};
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
    CHECK(syscall(SYS_userfaultfd, 0) == -1 && errno == EPERM);
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        int (*run)(void);
    } CASES[] = {
        {"calls", case_calls}, {"reads", case_reads}, {"transfers", case_transfers}, {"signals", case_signals}, {"futex", case_futex},
        {"iouring", case_iouring}, {"forks", case_forks}, {"kept", case_kept}, {"heap", case_heap},
        {"private", case_private},
    };
    if (argc > 1 && strcmp(argv[1], "--no-userfaultfd") == 0) refuse_userfaultfd(), argc--, argv++;
    struct ibv_context *context = open_device();
    pd = ibv_alloc_pd(context);
    CHECK(pd);
    for (size_t i = 0; argc > 1 && i < sizeof CASES / sizeof *CASES; i++) {
        if (strcmp(argv[1], CASES[i].name) == 0) return CASES[i].run();
    }
    fprintf(stderr, "usage: conversion [--no-userfaultfd] CASE\n");
    return 2;
}
