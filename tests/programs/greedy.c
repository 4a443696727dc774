// greedy WHAT: a tenant that speaks to the router without the library, and takes of one thing until it is refused. Says how
// many it got and the errno of the refusal, and keeps all until its standard input ends.
//
//   space      pages of a sparse arena, far apart from each other: address space, page tables
//   demand     the same as on-demand regions, which pin nothing
//   pages      regions of one page each
//   private    regions of private pages
//   contexts   device contexts
//   channels   completion channels
//   objects    completion queues, and address handles
//   memory     regions of pages that are there, until there are 400 MiB of them
//   absent     a region of pages that are not there
#define _GNU_SOURCE
#include "verbs.h"
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <rdma/ib_user_verbs.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { VERSION = 6, OPEN = 1, VERBS = 3, PAGE = 4096, PAGE_LEN = 256 << 10, ARENA = 1, PRIVATE = 2, ON_DEMAND = 1 << 6 };

// The session protocol (crates/uverbs/src/session.rs).
struct request_head {
    uint32_t version, kind, command_len, segments;
};

struct reply {
    uint32_t error, response_len, fds[4];
    uint64_t places[4];
    uint8_t mminfo[16];
    uint64_t wanted[2];
};

struct segment {
    uint64_t addr, len;
    uint32_t kind, reserved;
    uint64_t offset;
};

struct tenant {
    int socket, queues;
    uint32_t pd;
};

static uint8_t response[32768];

static int memory(const char *name, uint64_t len) {
    int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0 || ftruncate(fd, (off_t)len) < 0) return -1;
    return fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0 ? fd : -1;
}

// Sends a request; returns the errno of its reply, or EPIPE at the end of the connection.
static int call_once(struct tenant *t, uint32_t kind, const void *command, size_t len, const struct segment *segment, const int *fds,
                     size_t count, struct reply *reply) {
    union {
        struct cmsghdr head;
        char room[CMSG_SPACE(4 * sizeof(int))];
    } control = {0};
    struct request_head head = {VERSION, kind, (uint32_t)len, segment != NULL};
    struct iovec parts[3] = {{&head, sizeof head}, {(void *)command, len}, {(void *)segment, segment ? sizeof *segment : 0}};
    struct msghdr m = {.msg_iov = parts, .msg_iovlen = 3};
    if (count) {
        control.head = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(count * sizeof(int))};
        memcpy(CMSG_DATA(&control.head), fds, count * sizeof(int));
        m.msg_control = &control;
        m.msg_controllen = CMSG_SPACE(count * sizeof(int));
    }
    if (sendmsg(t->socket, &m, MSG_NOSIGNAL) < 0) return errno;
    struct iovec answer[2] = {{reply, sizeof *reply}, {response, sizeof response}};
    union {
        struct cmsghdr head;
        char room[CMSG_SPACE(4 * sizeof(int))];
    } received = {0};
    struct msghdr r = {.msg_iov = answer, .msg_iovlen = 2, .msg_control = &received, .msg_controllen = sizeof received};
    ssize_t got = recvmsg(t->socket, &r, MSG_CMSG_CLOEXEC);
    if (got < (ssize_t)sizeof *reply) return got < 0 ? errno : EPIPE;
    return (int)reply->error;
}

static int call(struct tenant *t, uint32_t kind, const void *command, size_t len, const struct segment *segment, const int *fds, size_t count) {
    struct reply reply;
    for (;;) {
        int error = call_once(t, kind, command, len, segment, fds, count, &reply);
        if (error != ENODATA || !reply.wanted[1]) return error;
        if (fallocate(t->queues, FALLOC_FL_KEEP_SIZE, (off_t)reply.wanted[0], (off_t)reply.wanted[1]) < 0) return errno;
    }
}

// A command of the uverbs ABI, with room for a response.
static int verb(struct tenant *t, uint32_t number, const void *body, size_t len, size_t room, const struct segment *segment, int arena) {
    uint8_t command[512];
    struct ib_uverbs_cmd_hdr head = {.command = number, .in_words = (uint16_t)((8 + len) / 4), .out_words = (uint16_t)(room / 4)};
    memcpy(command, &head, 8);
    memcpy(command + 8, body, len);
    return call(t, VERBS, command, 8 + len, segment, &arena, arena >= 0);
}

static void address_of_router(struct sockaddr_un *to) {
    const char *endpoint = getenv("RDMESH_ENDPOINT"), *library = getenv("LD_PRELOAD");
    CHECK(endpoint || library);
    char *copy = strdup(endpoint ? endpoint : library);
    to->sun_family = AF_UNIX;
    snprintf(to->sun_path, sizeof to->sun_path, "%s/verbs.sock", endpoint ? copy : dirname(copy));
    free(copy);
}

static int open_tenant(struct tenant *t) {
    struct sockaddr_un to = {0};
    address_of_router(&to);
    t->socket = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (t->socket < 0 || connect(t->socket, (struct sockaddr *)&to, sizeof to) < 0) return errno;
    int fds[2] = {memory("page", PAGE_LEN), memory("queues", 1ull << 60)};
    CHECK(fds[0] >= 0 && fds[1] >= 0 && fallocate(fds[0], 0, 0, PAGE_LEN) == 0);
    int error = call(t, OPEN, NULL, 0, NULL, fds, 2);
    close(fds[0]);
    t->queues = fds[1];
    uint64_t nothing = 0;
    if (!error) error = verb(t, IB_USER_VERBS_CMD_GET_CONTEXT, &nothing, 8, 8, NULL, -1);
    if (!error) error = verb(t, IB_USER_VERBS_CMD_ALLOC_PD, &nothing, 8, 4, NULL, -1);
    memcpy(&t->pd, response, 4);
    return error;
}

static int registered(struct tenant *t, struct segment s, uint32_t access, int arena) {
    struct {
        uint64_t response, start, length, hca_va;
        uint32_t pd, access;
    } body = {0, s.addr, s.len, s.addr, t->pd, access};
    return verb(t, IB_USER_VERBS_CMD_REG_MR, &body, sizeof body, 12, &s, arena);
}

static struct segment piece(uint64_t offset, uint64_t len) {
    return (struct segment){.addr = 1 << 20, .len = len, .kind = ARENA, .offset = offset};
}

static struct tenant first;
static int arena = -1;

static int space(uint64_t i) {
    CHECK(fallocate(arena, FALLOC_FL_KEEP_SIZE, (off_t)(i << 32), PAGE) == 0);
    return registered(&first, piece(i << 32, PAGE), 1, arena);
}

static int demand(uint64_t i) {
    return registered(&first, piece(i << 40, 1ull << 40), 1 | ON_DEMAND, arena);
}

static int pages(uint64_t i) {
    CHECK(fallocate(arena, FALLOC_FL_KEEP_SIZE, (off_t)(2 * i * PAGE), PAGE) == 0);
    return registered(&first, piece(2 * i * PAGE, PAGE), 1, arena);
}

static int private_pages(uint64_t i) {
    static uint8_t page[PAGE];
    (void)i;
    struct segment s = {.addr = (uintptr_t)page, .len = PAGE, .kind = PRIVATE};
    return registered(&first, s, 1, -1);
}

static int contexts(uint64_t i) {
    static struct tenant more;
    (void)i;
    return open_tenant(&more);
}

static int channels(uint64_t i) {
    uint64_t nothing = 0;
    (void)i;
    return verb(&first, IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL, &nothing, 8, 4, NULL, -1);
}

static int objects(uint64_t i) {
    struct ib_uverbs_create_cq cq = {.cqe = 1, .comp_channel = -1};
    struct ib_uverbs_create_ah ah = {.pd_handle = first.pd, .attr = {.is_global = 1, .port_num = 1}};
    ah.attr.grh.dgid[15] = 1;
    if (i % 64 == 0) return verb(&first, IB_USER_VERBS_CMD_CREATE_CQ, &cq, sizeof cq, 24, NULL, -1);
    return verb(&first, IB_USER_VERBS_CMD_CREATE_AH, &ah, sizeof ah, 4, NULL, -1);
}

static int filled(uint64_t i) {
    const uint64_t len = 4 << 20;
    if (i == 100) return ENOENT;
    CHECK(fallocate(arena, FALLOC_FL_KEEP_SIZE, (off_t)(i * len), (off_t)len) == 0);
    return registered(&first, piece(i * len, len), 1, arena);
}

static int absent(uint64_t i) {
    return registered(&first, piece(i << 30, 64 << 20), 1, arena);
}

static const struct {
    const char *name;
    int (*take)(uint64_t number);
} WHAT[] = {{"space", space},       {"demand", demand},     {"pages", pages}, {"private", private_pages}, {"contexts", contexts},
            {"channels", channels}, {"objects", objects},   {"memory", filled}, {"absent", absent}};

int main(int argc, char **argv) {
    CHECK(argc == 2);
    struct rlimit files;
    CHECK(getrlimit(RLIMIT_NOFILE, &files) == 0);
    files.rlim_cur = files.rlim_max;
    CHECK(setrlimit(RLIMIT_NOFILE, &files) == 0);
    int error = open_tenant(&first);
    CHECK(error == 0, "%s", strerror(error));
    arena = memory("arena", 1ull << 60);
    CHECK(arena >= 0);
    for (size_t w = 0; w < sizeof WHAT / sizeof *WHAT; w++) {
        if (strcmp(argv[1], WHAT[w].name) != 0) continue;
        uint64_t count = 0;
        while ((error = WHAT[w].take(count)) == 0) count++;
        printf("%s %llu %s\n", argv[1], (unsigned long long)count, strerrorname_np(error));
        fflush(stdout);
        while (getchar() != EOF) {}
        return 0;
    }
    return 2;
}
