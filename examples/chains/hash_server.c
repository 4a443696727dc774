/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A table of values by key that chains serve: once a client is connected, this program has no part in its gets.
 *
 *     rdmesh run --name a --net blue --ip 10.7.0.2 -- ./hash_server
 *     rdmesh run --name b --net blue --ip 10.7.0.3 -- ./hash_client 10.7.0.2 one two nothing
 *
 * A line `KEY VALUE` on standard input stores a value, `KEY` alone removes one, `?` shows what the chains have done.
 */
#include "connect.h"
#include "hash_table.h"
#include <poll.h>

enum { MOST_CLIENTS = 64, OUTSTANDING = 16 };

static struct rdmesh_service *services[MOST_CLIENTS];
static int clients;

static struct rdmesh_chain *make_chain(const char *design) {
    int is_portable = design && strcmp(design, "portable") == 0;
    struct rdmesh_chain *one = rdmesh_hash_chain(&SHAPE, is_portable ? RDMESH_DESIGN_PORTABLE : RDMESH_DESIGN_LOCAL);
    struct rdmesh_chain *chain = one ? rdmesh_chain_instances(one, OUTSTANDING) : NULL;
    if (!chain) die("%s", rdmesh_chain_error());
    rdmesh_chain_free(one);
    return chain;
}

/* Each client has a chain of its own; the table is that of the first. */
static struct rdmesh_service *serve(const struct rdmesh_chain *chain, struct ibv_pd *pd) {
    struct rdmesh_install how = {.beside = services[0]};
    struct rdmesh_service *service = rdmesh_chain_install(chain, pd, &how);
    if (!service) die("%s", rdmesh_chain_error());
    return services[clients] = service;
}

static void change(struct rdmesh_hash *table, char *line) {
    char *key = strtok(line, " \n"), *value = strtok(NULL, "\n");
    if (key && value) {
        if (rdmesh_hash_insert(table, key, strlen(key), value, strlen(value)) != 0) printf("%s\n", rdmesh_chain_error());
        else printf("stored %s\n", key);
    } else if (key) {
        printf("%s %s\n", rdmesh_hash_remove(table, key, strlen(key)) == 1 ? "removed" : "there was no", key);
    }
}

static void show(void) {
    for (int i = 0; i < clients; i++) {
        struct rdmesh_stats stats;
        struct rdmesh_fault fault;
        if (rdmesh_service_stats(services[i], &stats) != 0) die("%s", rdmesh_chain_error());
        printf("client %d: state %u, %" PRIu64 " steps\n", i, stats.state, stats.steps);
        if (rdmesh_service_last_error(services[i], &fault) == 1) printf("  %s\n", fault.text);
    }
}

int main(int argc, char **argv) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (!rdmesh_chain_is_available()) die("run this by `rdmesh run`");
    struct ibv_pd *pd = ibv_alloc_pd(open_device());
    struct rdmesh_chain *chain = make_chain(argc > 1 ? argv[1] : NULL);
    struct rdmesh_service *next = serve(chain, pd);
    struct rdmesh_hash *table = rdmesh_hash_open(&SHAPE, next);
    if (!table) die("%s", rdmesh_chain_error());
    change(table, strdup("one the first value"));
    change(table, strdup("two the second value"));

    struct pollfd wait[2] = {{.fd = listen_at(PORT), .events = POLLIN}, {.fd = STDIN_FILENO, .events = POLLIN}};
    puts("listening");
    char line[1024];
    while (poll(wait, 2, -1) >= 0) {
        if (wait[0].revents & POLLIN && clients < MOST_CLIENTS) {
            int stream = accept(wait[0].fd, NULL, NULL);
            if (!next) next = serve(chain, pd);
            join(stream, rdmesh_service_qp(next, 0), 0);
            close(stream);
            next = NULL;
            printf("client %d\n", clients++);
        }
        if (wait[1].revents & (POLLIN | POLLHUP)) {
            if (!fgets(line, sizeof line, stdin)) break;
            if (line[0] == '?') show();
            else change(table, line);
        }
    }
    rdmesh_hash_close(table);
    for (int i = MOST_CLIENTS; i-- > 0;) rdmesh_service_close(services[i]);
    rdmesh_chain_free(chain);
    return 0;
}
