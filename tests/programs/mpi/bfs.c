// bfs SCALE EDGE_FACTOR AGGREGATION [ROOTS]: breadth-first search of a Kronecker graph, as Graph500's first kernel does it.
//
// 2^SCALE vertices, EDGE_FACTOR times as many edges (A 0.57, B 0.19, C 0.19), vertices in a random order, spread over the ranks. A
// level's edges go to the ranks of their far ends in messages of up to AGGREGATION bytes. Each tree is checked: every vertex but
// the root has an edge to its parent, whose level is one less, and no edge spans more than one level.
//
// Rank 0 prints "SECONDS COMMUNICATION TEPS": of all searches the time, the share of it in MPI calls, and edges a second.
#include "check.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TAG_EDGES = 7, TAG_END = 8 };
static const int64_t NONE = -1;

static uint64_t edges_all, vertices_all, vertices;
static double in_mpi;

struct pair { int64_t from, to; };

// Edges of the vertices of this rank: the neighbours of vertex v are at targets[starts[v]] to targets[starts[v + 1]].
static uint64_t *starts;
static int64_t *targets;

static int owner(int64_t vertex) { return (int)((uint64_t)vertex % (uint64_t)size); }
static uint64_t place(int64_t vertex) { return (uint64_t)vertex / (uint64_t)size; }

static uint64_t mixed(uint64_t x) {
    x += 0x9E3779B97F4A7C15;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9;
    x = (x ^ x >> 27) * 0x94D049BB133111EB;
    return x ^ x >> 31;
}

// A bijection of numbers of `bits` bits, so that neighbours in the order of generation are not neighbours in memory.
static int64_t renamed(uint64_t vertex, int bits) {
    uint64_t mask = ((uint64_t)1 << bits) - 1;
    for (int i = 0; i < 4; i++) {
        vertex = (vertex * 0x9E3779B97F4A7C15 + 0x632BE59BD9B4E019) & mask;
        vertex ^= vertex >> (bits / 2 + 1);
    }
    return (int64_t)vertex;
}

static struct pair edge(uint64_t number, int scale) {
    uint64_t from = 0, to = 0;
    for (int bit = 0; bit < scale; bit++) {
        uint64_t chance = mixed(number * 64 + (uint64_t)bit) % 100;
        from = from << 1 | (chance >= 76);
        to = to << 1 | (chance >= 57 && (chance < 76 || chance >= 95));
    }
    return (struct pair){renamed(from, scale), renamed(to, scale)};
}

// What is on its way to other ranks: a message for each is being filled while the last one leaves.
struct outbox {
    struct pair *filling, *leaving;
    size_t count;
    MPI_Request request;
};

static struct outbox *outboxes;
static struct pair *inbox;
static size_t most;
static MPI_Request incoming;
static int ended;

static void (*take)(struct pair);

static void post(void) {
    MPI_Irecv(inbox, (int)(most * sizeof *inbox), MPI_BYTE, MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &incoming);
}

// Takes what has come; waits for something if it must.
static void hear(bool waits) {
    int flag = 1;
    MPI_Status status;
    double begin = MPI_Wtime();
    if (waits) MPI_Wait(&incoming, &status);
    else MPI_Test(&incoming, &flag, &status);
    in_mpi += MPI_Wtime() - begin;
    if (!flag) return;
    int len;
    MPI_Get_count(&status, MPI_BYTE, &len);
    ended += status.MPI_TAG == TAG_END;
    for (size_t i = 0; i < (size_t)len / sizeof *inbox; i++) take(inbox[i]);
    post();
}

static void flush(int to, int tag) {
    struct outbox *box = &outboxes[to];
    int is_gone = 0;
    for (;;) {
        double begin = MPI_Wtime();
        MPI_Test(&box->request, &is_gone, MPI_STATUS_IGNORE);
        in_mpi += MPI_Wtime() - begin;
        if (is_gone) break;
        hear(false);
    }
    struct pair *full = box->filling;
    box->filling = box->leaving;
    box->leaving = full;
    double begin = MPI_Wtime();
    MPI_Isend(full, (int)(box->count * sizeof *full), MPI_BYTE, to, tag, MPI_COMM_WORLD, &box->request);
    in_mpi += MPI_Wtime() - begin;
    box->count = 0;
}

static void put(struct pair pair) {
    int to = owner(pair.to);
    if (to == rank) {
        take(pair);
        return;
    }
    struct outbox *box = &outboxes[to];
    box->filling[box->count++] = pair;
    if (box->count == most) {
        flush(to, TAG_EDGES);
        hear(false);
    }
}

// All ranks have sent all, and have got it.
static void settle(void) {
    for (int i = 1; i < size; i++) flush((rank + i) % size, TAG_END);
    while (ended < size - 1) hear(true);
    double begin = MPI_Wtime();
    for (int i = 0; i < size; i++) MPI_Wait(&outboxes[i].request, MPI_STATUS_IGNORE);
    ended = 0;
    MPI_Barrier(MPI_COMM_WORLD);
    in_mpi += MPI_Wtime() - begin;
}

static uint64_t sum(uint64_t mine) {
    uint64_t all;
    double begin = MPI_Wtime();
    MPI_Allreduce(&mine, &all, 1, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
    in_mpi += MPI_Wtime() - begin;
    return all;
}

// The graph: each rank makes its share of the edges, and sends both directions to the ranks of their beginnings.
static struct pair *collected;
static size_t collected_count, collected_room;

static void collect(struct pair pair) {
    if (collected_count == collected_room) {
        collected_room = collected_room ? 2 * collected_room : 1024;
        collected = realloc(collected, collected_room * sizeof *collected);
        CHECK(collected);
    }
    collected[collected_count++] = pair;
}

static void make_graph(int scale) {
    take = collect;
    for (uint64_t i = (uint64_t)rank; i < edges_all; i += (uint64_t)size) {
        struct pair e = edge(i, scale);
        put(e);
        put((struct pair){e.to, e.from});
    }
    settle();
    starts = calloc(vertices + 2, sizeof *starts);
    targets = allocate(collected_count * sizeof *targets);
    for (size_t i = 0; i < collected_count; i++) starts[place(collected[i].to) + 2]++;
    for (uint64_t v = 1; v < vertices + 2; v++) starts[v] += starts[v - 1];
    for (size_t i = 0; i < collected_count; i++) targets[starts[place(collected[i].to) + 1]++] = collected[i].from;
    free(collected);
}

// The search: parents of this rank's vertices, and their levels; the vertices of the present level and of the next.
static int64_t *parents, *levels, *now, *next, level;
static size_t now_count, next_count;

static void visit(struct pair pair) {
    uint64_t v = place(pair.to);
    if (parents[v] != NONE) return;
    parents[v] = pair.from;
    levels[v] = level;
    next[next_count++] = pair.to;
}

static double search(int64_t root) {
    MPI_Barrier(MPI_COMM_WORLD);
    double begin = MPI_Wtime();
    for (uint64_t v = 0; v < vertices; v++) parents[v] = levels[v] = NONE;
    level = 0, next_count = 0, take = visit;
    if (owner(root) == rank) visit((struct pair){root, root});
    uint64_t reached = 1;
    while (reached > 0) {
        int64_t *swapped = now;
        now = next, next = swapped, now_count = next_count, next_count = 0, level++;
        for (size_t i = 0; i < now_count; i++)
            for (uint64_t e = starts[place(now[i])]; e < starts[place(now[i]) + 1]; e++) put((struct pair){now[i], targets[e]});
        settle();
        reached = sum(next_count);
    }
    return MPI_Wtime() - begin;
}

// The check: each rank tells the owners of its vertices' neighbours the level of its own.
static uint64_t proven, spans;

static void compare(struct pair pair) {
    // `from` is a neighbour and its level, `to` the vertex.
    uint64_t v = place(pair.to);
    int64_t neighbour = pair.from / 64, its = pair.from % 64 - 1;
    int64_t difference = its - levels[v];
    spans += (its == NONE) != (levels[v] == NONE) || (its != NONE && (difference > 1 || difference < -1));
    if (parents[v] == neighbour && levels[v] > 0 && difference == -1) {
        // Once for each vertex.
        parents[v] = NONE;
        proven++;
    }
}

static uint64_t check_tree(void) {
    uint64_t reached = 0;
    take = compare, proven = spans = 0;
    for (uint64_t v = 0; v < vertices; v++) reached += levels[v] > 0;
    for (uint64_t v = 0; v < vertices; v++) {
        int64_t vertex = (int64_t)(v * (uint64_t)size) + rank;
        for (uint64_t e = starts[v]; e < starts[v + 1]; e++) put((struct pair){vertex * 64 + levels[v] + 1, targets[e]});
    }
    settle();
    CHECK(spans == 0);
    CHECK(proven == reached);
    return sum(reached);
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    int scale = argc > 1 ? atoi(argv[1]) : 10, roots = argc > 4 ? atoi(argv[4]) : 4;
    vertices_all = (uint64_t)1 << scale, edges_all = vertices_all * (uint64_t)(argc > 2 ? atoi(argv[2]) : 16);
    vertices = (vertices_all + (uint64_t)size - 1) / (uint64_t)size;
    most = (size_t)(argc > 3 ? atoi(argv[3]) : 65536) / sizeof(struct pair);
    outboxes = allocate((size_t)size * sizeof *outboxes);
    for (int i = 0; i < size; i++) {
        outboxes[i] = (struct outbox){allocate(most * sizeof *inbox), allocate(most * sizeof *inbox), 0, MPI_REQUEST_NULL};
    }
    inbox = allocate(most * sizeof *inbox);
    post();
    make_graph(scale);
    parents = allocate(vertices * 8), levels = allocate(vertices * 8), now = allocate(vertices * 8), next = allocate(vertices * 8);
    double seconds = 0, communication = 0;
    uint64_t searched = 0;
    for (int i = 0; searched < (uint64_t)roots; i++) {
        int64_t root = (int64_t)(mixed((uint64_t)i) % vertices_all);
        uint64_t degree = owner(root) == rank ? starts[place(root) + 1] - starts[place(root)] : 0;
        if (sum(degree) == 0) continue;
        in_mpi = 0;
        seconds += search(root);
        communication += in_mpi;
        CHECK(check_tree() > 0 || vertices_all < 2);
        searched++;
    }
    double share = communication / seconds, shares;
    MPI_Reduce(&share, &shares, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0) printf("%.4f %.3f %.0f\n", seconds, shares / size, (double)edges_all * roots / seconds);
    MPI_Cancel(&incoming);
    MPI_Wait(&incoming, MPI_STATUS_IGNORE);
    MPI_Finalize();
    return 0;
}
