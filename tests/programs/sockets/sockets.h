// Cases about TCP sockets that hold with and without acceleration. Each runs alone in a process and returns 0.
#pragma once
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) fail(__FILE__, __LINE__, #condition);                                                        \
    } while (0)

void fail(const char *file, int line, const char *condition) __attribute__((noreturn));

// Both ends of a connection; `a` has connected, `b` was accepted.
struct pair {
    int a, b;
};

// A listening socket on loopback, and its address.
int listening(struct sockaddr_in *address);
// A connection on which nothing has been sent.
struct pair fresh(void);
// A connection whose both directions are on rings, where the library is there.
struct pair connected(void);
// A connection to this address, and moving it to rings with the help of the other end's `answer`.
void warm_up(struct pair p);
// Whether bytes from `from` to `to` go round TCP now, as the kernel counts them.
bool is_on_ring(int from, int to);
// Whether a byte to the other end, which answers with one, goes round TCP now.
bool is_asked_on_ring(int fd);
// Whether the library is expected to be there.
bool is_accelerated(void);
void nonblocking(int fd);
void send_all(int fd, const void *bytes, size_t len);
// Receives exactly so many bytes.
void receive_all(int fd, void *bytes, size_t len);
// Bytes of a stream: byte `at` is always the same.
void fill(unsigned char *bytes, size_t len, uint64_t at);
void check(const unsigned char *bytes, size_t len, uint64_t at);
double seconds(void);
double processor_seconds(void);

#define CASES(X)                                                                                                       \
    X(bytes_both_ways) X(many_pieces) X(peek_wait_all_and_truncate) X(full_and_drained) X(files) X(messages_at_once)   \
    X(counts_of_ioctl) X(bytes_of_both_ways_at_once) X(vectors_with_flags) X(left_to_read) X(urgent_data) X(wrong_arguments) X(standard_streams)                                                              \
    X(half_close) X(answer_and_close) X(answer_before_reset) X(close_with_unread_data) X(shutdown_of_reading) X(close_after_shutdown_of_reading) X(killed_peer) X(quick_connections) X(broken_pipe) X(duplicates)         \
    X(forked_child_goes_on) X(program_inherits) X(spawned_program_reads) X(passed_descriptor) \
    X(peer_without_library) X(vfork_closes) X(children_own_connections) X(parent_keeps_connection)                     \
    X(connection_of_both) X(closed_by_system_call) X(bytes_by_system_calls) X(closed_beside_reader)                    \
    X(level_triggered) X(edge_triggered) X(edge_of_space) X(one_shot) X(end_by_epoll) X(nested_epoll) X(two_sets)      \
    X(modified_before_added) X(polled) X(selected) X(time_outs) X(interrupted) X(threads_of_one_process)               \
    X(blocked_thread_is_woken) X(idle_costs_nothing) X(accept_beside_busy_stream) X(many_streams) X(closed_and_reused)     \
    X(last_stream_closed) X(each_stream_once) X(edge_of_space_on_tcp) X(added_after_rings) X(added_before_connect) X(duplicated_epoll) X(filled_to_the_last_byte) \
    X(order_of_connections) X(no_times) X(negative_time_outs) X(times_of_recvmmsg) X(exchange_of_much) X(waits_by_system_calls)

#define DECLARE(name) int case_##name(void);
CASES(DECLARE)
