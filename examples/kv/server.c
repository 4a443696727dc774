/* server [PORT [MEGABYTES]]: a key-value server with memcached's text protocol, of which gets are served by chains too.
 *
 * rdmesh run --name kv --net blue --ip 10.7.0.2 --linger 60s --take-over -- server
 *
 * Any memcached client may use it by socket. A client of client.h asks it for a chain, and then gets values without its processor; with a
 * lease (--linger) also after its death. */
#define _GNU_SOURCE
#include "protocol.h"
#include "serve.h"
#include "store.h"
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* Answers that wait beyond ENOUGH keep a connection's further commands from being executed. */
enum { MOST = 256, ROOM = 2 << 20, ENOUGH = 1 << 20 };

struct connection {
    struct session session;
    char *input;
    size_t length;
};

static struct pollfd polled[MOST + 1]; /* the first is the listener */
static struct connection connections[MOST + 1];
static nfds_t count = 1;

static int listen_on(uint16_t port) {
    int fd = socket(AF_INET6, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), on = 1, off = 0;
    struct sockaddr_in6 any = {.sin6_family = AF_INET6, .sin6_port = htons(port), .sin6_addr = in6addr_any};
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    if (fd < 0 || bind(fd, (struct sockaddr *)&any, sizeof any) || listen(fd, 128)) {
        perror("listen");
        exit(1);
    }
    return fd;
}

static void add(int fd) {
    int on = 1;
    char *input = count <= MOST ? malloc(ROOM) : NULL;
    if (!input) {
        close(fd);
        return;
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    connections[count] = (struct connection){.input = input};
    polled[count++] = (struct pollfd){.fd = fd, .events = POLLIN};
}

static void end(nfds_t i) {
    struct connection *connection = &connections[i];
    if (connection->session.chain) serve_close(connection->session.chain);
    free(connection->session.output.bytes);
    free(connection->input);
    close(polled[i].fd);
    count--;
    connections[i] = connections[count];
    polled[i] = polled[count];
}

/* Executes what has come. */
static void work(struct connection *connection) {
    size_t at = 0, used;
    while (at < connection->length && !connection->session.is_over && connection->session.output.length < ENOUGH &&
           (used = protocol_take(&connection->session, connection->input + at, connection->length - at)) > 0) {
        at += used;
    }
    connection->length -= at;
    memmove(connection->input, connection->input + at, connection->length);
}

/* Serves a connection that is ready. Returns whether it goes on. */
static int serve(struct pollfd *fd, struct connection *connection) {
    struct output *output = &connection->session.output;
    if (fd->revents & (POLLIN | POLLHUP | POLLERR)) {
        ssize_t got = recv(fd->fd, connection->input + connection->length, ROOM - connection->length, 0);
        if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) return 0;
        if (got > 0) connection->length += (size_t)got;
        work(connection);
    }
    if (output->length) {
        ssize_t sent = send(fd->fd, output->bytes, output->length, MSG_NOSIGNAL);
        if (sent < 0 && errno != EAGAIN && errno != EINTR) return 0;
        output->length -= sent > 0 ? (size_t)sent : 0;
        if (sent > 0) memmove(output->bytes, output->bytes + sent, output->length);
        /* What has come before is executed when its answers have room. */
        if (!output->length) {
            free(output->bytes);
            *output = (struct output){0};
            work(connection);
        }
    }
    /* A client that does not read its answers is not heard meanwhile. */
    fd->events = output->length ? POLLOUT : POLLIN;
    return !connection->session.is_over || output->length;
}

int main(int argc, char **argv) {
    uint16_t port = argc > 1 ? (uint16_t)atoi(argv[1]) : 11211;
    if (argc > 2) store_limit((size_t)atoi(argv[2]) << 20);
    setvbuf(stdout, NULL, _IOLBF, 0);
    signal(SIGPIPE, SIG_IGN);
    int has_chains = serve_start();
    polled[0] = (struct pollfd){.fd = listen_on(port), .events = POLLIN};
    printf("serving port %u %s\n", port, has_chains ? "by socket and by chain" : "by socket");
    for (;;) {
        poll(polled, count, 1000);
        serve_tick();
        for (nfds_t i = count - 1; i > 0; i--) {
            if (polled[i].revents && !serve(&polled[i], &connections[i])) end(i);
        }
        if (polled[0].revents) {
            int fd = accept4(polled[0].fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
            if (fd >= 0) add(fd);
        }
    }
}
