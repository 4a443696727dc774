/* librdmesh-memcached.so: lets chains answer the gets of the distribution's unmodified memcached.
 *
 * Loaded into memcached beside librdmesh.so, it gives memcached its hash table and its slabs from memory that is registered, and starts
 * a thread that makes a chain for each client that asks for one at the TCP port in RDMESH_MEMCACHED. Nothing else of memcached changes.
 * It works by the sizes of allocations, as memcached 1.6 makes them: the table is the calloc of 2^hashpower pointers, and slabs are
 * mallocs of 1 MiB. The table must not grow, and slabs must not move: -o no_hashexpand,hashpower=N,no_slab_reassign. */
#define _GNU_SOURCE
#include "../../include/rdmesh_chain.h"
#include "../../include/rdmesh_memcached.h"
#include "../../include/rdmesh.h"
#include "../kv/shared.h"
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

enum { SLAB = 1 << 20, MOST = 128, HOPS = 4, LINE = 128 };

/* glibc's own: the names that they usually have are ours. */
void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *memory, size_t size);
void __libc_free(void *memory);

/* Memory of the items, of which the slabs are cut. */
static char *items;
static size_t items_length, slabs_length;
static atomic_size_t slabs_used;

static struct ibv_pd *pd;
static struct rdmesh_table tables[2];
static struct rdmesh_memcached_shape shape;
static struct rdmesh_chain *chain;

static int is_ours(const void *memory) {
    return items && (const char *)memory >= items && (const char *)memory < items + items_length;
}

/* The value of an option in memcached's own command line; `fallback` where it is not there. */
static long option(const char *brief, const char *word, long fallback) {
    static char text[64 << 10];
    FILE *file = fopen("/proc/self/cmdline", "re");
    size_t length = file ? fread(text, 1, sizeof text - 1, file) : 0;
    if (file) fclose(file);
    for (char *at = text; at < text + length; at += strlen(at) + 1) {
        char *next = at + strlen(at) + 1, *found = strstr(at, word);
        if (found && found[strlen(word)] == '=') return strtol(found + strlen(word) + 1, NULL, 10);
        if (brief && strncmp(at, brief, 2) == 0) return strtol(at[2] ? at + 2 : next, NULL, 10);
    }
    return fallback;
}

/* ---- Clients ---------------------------------------------------------------------------------------------------- */

struct client {
    struct rdmesh_service *service;
    char line[LINE];
    size_t length;
};

static struct pollfd polled[MOST + 1]; /* the first is the listener */
static struct client clients[MOST + 1];
static nfds_t count = 1;

/* Makes a chain for a client: "chain GID QPN PSN". */
static struct rdmesh_service *serve(const char *line, char *answer, size_t size) {
    char gid[64], qpn[16], psn[16], text[33];
    struct kv_end peer, own;
    struct rdmesh_install how = {.num_tables = 2, .tables = tables};
    if (sscanf(line, "chain %63s %15s %15s", gid, qpn, psn) != 3 || !kv_parse_end(gid, qpn, psn, &peer)) {
        snprintf(answer, size, "ERROR\n");
        return NULL;
    }
    struct rdmesh_service *service = rdmesh_chain_install(chain, pd, &how);
    struct ibv_qp *qp = service ? rdmesh_service_qp(service, 0) : NULL;
    if (!qp || kv_own_end(qp, &own) || kv_connect(qp, own.psn, &peer, 0)) {
        snprintf(answer, size, "ERROR %s\n", service ? "the connection failed" : rdmesh_chain_error());
        if (service) rdmesh_service_close(service);
        return NULL;
    }
    kv_print_gid(&own.gid, text);
    snprintf(answer, size, "CHAIN %s %u %u %u %u %llu\n", text, own.qpn, own.psn, shape.hash_power, shape.hops, (unsigned long long)shape.items);
    return service;
}

/* Takes what a client says. Returns whether it stays. */
static int hear(int fd, struct client *client) {
    char answer[256] = "";
    ssize_t got = recv(fd, client->line + client->length, LINE - 1 - client->length, 0);
    if (got <= 0) return 0;
    client->length += (size_t)got;
    client->line[client->length] = 0;
    if (!strchr(client->line, '\n')) return client->length < LINE - 1;
    if (!client->service) client->service = serve(client->line, answer, sizeof answer);
    client->length = 0;
    return send(fd, answer, strlen(answer), MSG_NOSIGNAL) > 0 && client->service;
}

static void drop(nfds_t i) {
    if (clients[i].service) rdmesh_service_close(clients[i].service);
    close(polled[i].fd);
    count--;
    clients[i] = clients[count];
    polled[i] = polled[count];
}

static void *attend(void *unused) {
    for (;;) {
        poll(polled, count, -1);
        for (nfds_t i = count - 1; i > 0; i--) {
            if (polled[i].revents && !hear(polled[i].fd, &clients[i])) drop(i);
        }
        int fd = polled[0].revents ? accept4(polled[0].fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK) : -1;
        if (fd < 0) continue;
        if (count > MOST) {
            close(fd);
            continue;
        }
        clients[count] = (struct client){.length = 0};
        polled[count++] = (struct pollfd){.fd = fd, .events = POLLIN};
    }
    return unused;
}

static int listen_on(uint16_t port) {
    int fd = socket(AF_INET6, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), on = 1, off = 0;
    struct sockaddr_in6 any = {.sin6_family = AF_INET6, .sin6_port = htons(port), .sin6_addr = in6addr_any};
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    if (fd >= 0 && bind(fd, (struct sockaddr *)&any, sizeof any) == 0 && listen(fd, 64) == 0) return fd;
    if (fd >= 0) close(fd);
    return -1;
}

/* ---- Memory ----------------------------------------------------------------------------------------------------- */

/* Registers table and items, and starts the thread. Returns the table, or NULL with a message. */
static void *begin(uint16_t port, size_t buckets) {
    struct ibv_context *context = rdmesh_chain_is_available() ? kv_open_device() : NULL;
    size_t table_length = buckets * sizeof(void *), megabytes = (size_t)option("-m", "memory-limit", 64);
    pthread_t thread;
    pd = context ? ibv_alloc_pd(context) : NULL;
    /* Each of 63 classes may have a slab beyond the limit; what a reply reads behind an item lies in memory too. */
    slabs_length = (megabytes + 64) * SLAB;
    items_length = slabs_length + 2 * SLAB;
    void *table = pd ? rdmesh_malloc(table_length) : NULL;
    char *memory = table ? rdmesh_malloc(items_length) : NULL;
    /* Nothing but chains of this process reads them. */
    struct ibv_mr *table_mr = memory ? ibv_reg_mr_iova(pd, table, table_length, 0, 0) : NULL;
    struct ibv_mr *items_mr = table_mr ? ibv_reg_mr(pd, memory, items_length, 0) : NULL;
    shape = (struct rdmesh_memcached_shape){.hash_power = (uint32_t)__builtin_ctzl(buckets), .hops = HOPS, .items = items_length};
    chain = items_mr ? rdmesh_memcached_chain(&shape) : NULL;
    polled[0] = (struct pollfd){.fd = chain ? listen_on(port) : -1, .events = POLLIN};
    if (polled[0].fd < 0) {
        fprintf(stderr, "rdmesh-memcached: no chains: %s\n", !context ? "there is no device" : !chain ? rdmesh_chain_error() : "the port is taken");
        return NULL;
    }
    tables[0] = (struct rdmesh_table){.name = "table", .address = table, .length = table_length, .key = table_mr->lkey};
    tables[1] = (struct rdmesh_table){.name = "items", .address = memory, .length = items_length, .key = items_mr->lkey};
    items = memory;
    if (pthread_create(&thread, NULL, attend, NULL)) return NULL;
    return table;
}

/* Whether this is the table's allocation: the first of its size, but for that of connections, one for each descriptor there may be. */
static int is_table(size_t number, size_t size) {
    static long buckets;
    static int others;
    struct rlimit descriptors;
    if (size != sizeof(void *) || number < 1 << 10 || (number & (number - 1))) return 0;
    if (!buckets) {
        buckets = 1L << option(NULL, "hashpower", 16);
        others = getrlimit(RLIMIT_NOFILE, &descriptors) == 0 && descriptors.rlim_max == (rlim_t)buckets;
    }
    return number == (size_t)buckets && others-- <= 0;
}

void *calloc(size_t number, size_t size) {
    static int has_begun;
    const char *port = has_begun ? NULL : getenv("RDMESH_MEMCACHED");
    if (!port || !is_table(number, size)) return __libc_calloc(number, size);
    has_begun = 1;
    void *table = begin((uint16_t)atoi(port), number);
    return table ? table : __libc_calloc(number, size);
}

void *malloc(size_t size) {
    if (size == SLAB && items) {
        size_t at = atomic_fetch_add(&slabs_used, SLAB);
        if (at + SLAB <= slabs_length) return items + at;
    }
    return __libc_malloc(size);
}

/* Slabs stay where they are. */
void free(void *memory) {
    if (!is_ours(memory)) __libc_free(memory);
}

void *realloc(void *memory, size_t size) {
    if (!is_ours(memory)) return __libc_realloc(memory, size);
    void *copy = __libc_malloc(size);
    if (copy) memcpy(copy, memory, size < SLAB ? size : SLAB);
    return copy;
}
