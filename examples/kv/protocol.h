/* memcached's text protocol. */
#pragma once
#include <stddef.h>

/* Bytes on their way out. */
struct output {
    char *bytes;
    size_t length, room;
};

void output_add(struct output *output, const void *bytes, size_t length);
void output_print(struct output *output, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* A client's connection. */
struct session {
    struct output output;
    size_t swallow; /* bytes of a value that is too long */
    int is_over;
    void *chain; /* the client's chain, once it has asked for one */
};

/* Takes one command, or a part of it, from the input. Returns how many bytes were used; 0 for more to come. */
size_t protocol_take(struct session *session, char *input, size_t length);
