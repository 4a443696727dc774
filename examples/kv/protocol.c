#define _GNU_SOURCE
#include "protocol.h"
#include "serve.h"
#include "store.h"
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { MAX_WORDS = 64, MAX_LINE = 8192, MAX_ANSWER = 8 << 20, MONTH = 60 * 60 * 24 * 30 };

/* A command line, word by word. */
struct line {
    char *words[MAX_WORDS];
    size_t count;
    int is_silent; /* noreply */
};

static struct { uint64_t gets, hits, sets; } counts;
static time_t started;

void output_add(struct output *output, const void *bytes, size_t length) {
    if (output->length + length > output->room) {
        output->room = (output->length + length) * 2;
        output->bytes = realloc(output->bytes, output->room);
        if (!output->bytes) abort();
    }
    memcpy(output->bytes + output->length, bytes, length);
    output->length += length;
}

void output_print(struct output *output, const char *format, ...) {
    char *text;
    va_list arguments;
    va_start(arguments, format);
    int length = vasprintf(&text, format, arguments);
    va_end(arguments);
    if (length < 0) abort();
    output_add(output, text, (size_t)length);
    free(text);
}

static void reply(struct session *session, const struct line *line, const char *text) {
    if (!line->is_silent) output_print(&session->output, "%s\r\n", text);
}

static int number(const char *word, uint64_t *value) {
    char *end;
    errno = 0;
    *value = strtoull(word, &end, 10);
    return isdigit((unsigned char)*word) && *end == 0 && errno == 0;
}

static int is_key(const char *word) { return strlen(word) <= KV_MAX_KEY; }

/* When something expires that a command says expires after, or at, `seconds`; 1 is long ago. */
static int expiry(const char *word, uint64_t *expires) {
    char *end;
    long long seconds = strtoll(word, &end, 10);
    if (*word == 0 || *end) return 0;
    *expires = seconds == 0 ? 0 : seconds < 0 ? 1 : (uint64_t)(seconds > MONTH ? seconds : seconds + time(NULL));
    return 1;
}

static void get(struct session *session, const struct line *line, int with_cas) {
    if (line->count < 2) return output_print(&session->output, "ERROR\r\n");
    for (size_t i = 1; i < line->count; i++) {
        if (!is_key(line->words[i])) return output_print(&session->output, "CLIENT_ERROR bad command line format\r\n");
    }
    size_t begin = session->output.length;
    for (size_t i = 1; i < line->count; i++) {
        struct item *item = store_find(line->words[i], strlen(line->words[i]));
        counts.gets++;
        if (!item) continue;
        counts.hits++;
        if (session->output.length - begin + item->length > MAX_ANSWER) {
            session->output.length = begin;
            return output_print(&session->output, "SERVER_ERROR out of memory writing get response\r\n");
        }
        output_print(&session->output, "VALUE %s %u %zu", line->words[i], item->flags, item->length);
        if (with_cas) output_print(&session->output, " %" PRIu64, item->cas);
        output_print(&session->output, "\r\n");
        output_add(&session->output, item_value(item), item->length);
        output_print(&session->output, "\r\n");
    }
    output_print(&session->output, "END\r\n");
}

/* Stores a value, if the command's condition holds. */
static const char *store(const char *command, const char *key, struct item *item, uint64_t cas) {
    struct item *old = store_find(key, strlen(key));
    const char *answer = strcmp(command, "cas") == 0 && !old ? "NOT_FOUND"
                         : strcmp(command, "cas") == 0 && old->cas != cas ? "EXISTS"
                         : strcmp(command, "add") == 0 && old ? "NOT_STORED"
                         : strcmp(command, "set") != 0 && strcmp(command, "add") != 0 && !old ? "NOT_STORED"
                         : "STORED";
    if (strcmp(answer, "STORED") != 0) {
        store_drop(item);
        return answer;
    }
    int is_append = strcmp(command, "append") == 0;
    if (is_append || strcmp(command, "prepend") == 0) {
        struct item *more = item;
        if (old->length + more->length > KV_MAX_VALUE) {
            store_drop(more);
            return "SERVER_ERROR object too large for cache";
        }
        item = store_make(key, strlen(key), old->flags, old->expires, old->length + more->length);
        if (item) {
            memcpy(item_value(item) + (is_append ? 0 : more->length), item_value(old), old->length);
            memcpy(item_value(item) + (is_append ? old->length : 0), item_value(more), more->length);
        }
        store_drop(more);
        if (!item) return "SERVER_ERROR out of memory storing object";
    }
    store_put(item);
    counts.sets++;
    return answer;
}

/* `set` and its kin: the value follows the line. Returns how many bytes of it were used, or -1 for more to come. */
static long take_value(struct session *session, const struct line *line, const char *value, size_t length) {
    uint64_t flags, expires, bytes, cas = 0;
    int is_cas = strcmp(line->words[0], "cas") == 0;
    if (line->count != (is_cas ? 6 : 5) || !is_key(line->words[1]) || !number(line->words[2], &flags) || flags > UINT32_MAX ||
        !expiry(line->words[3], &expires) || !number(line->words[4], &bytes) || (is_cas && !number(line->words[5], &cas))) {
        output_print(&session->output, line->count < 5 ? "ERROR\r\n" : "CLIENT_ERROR bad command line format\r\n");
        return 0;
    }
    if (bytes > KV_MAX_VALUE) {
        reply(session, line, "SERVER_ERROR object too large for cache");
        store_remove(line->words[1], strlen(line->words[1]));
        session->swallow = bytes + 2;
        return 0;
    }
    if (length < bytes + 2) return -1;
    if (memcmp(value + bytes, "\r\n", 2) != 0) {
        reply(session, line, "CLIENT_ERROR bad data chunk");
        const char *end = memchr(value + bytes, '\n', length - bytes);
        return end ? end + 1 - value : (long)length;
    }
    struct item *item = store_make(line->words[1], strlen(line->words[1]), (uint32_t)flags, expires, bytes);
    if (!item) {
        reply(session, line, "SERVER_ERROR out of memory storing object");
    } else {
        memcpy(item_value(item), value, bytes);
        reply(session, line, store(line->words[0], line->words[1], item, cas));
    }
    return (long)bytes + 2;
}

static void count_up_or_down(struct session *session, const struct line *line, int is_up) {
    uint64_t delta, value;
    char text[24];
    if (line->count != 3) return reply(session, line, "ERROR");
    if (!number(line->words[2], &delta)) return reply(session, line, "CLIENT_ERROR invalid numeric delta argument");
    struct item *item = store_find(line->words[1], strlen(line->words[1]));
    if (!item) return reply(session, line, "NOT_FOUND");
    snprintf(text, sizeof text, "%.*s", item->length < sizeof text ? (int)item->length : 0, item_value(item));
    if (!number(text, &value)) return reply(session, line, "CLIENT_ERROR cannot increment or decrement non-numeric value");
    value = is_up ? value + delta : value > delta ? value - delta : 0;
    snprintf(text, sizeof text, "%" PRIu64, value);
    struct item *new = store_make(line->words[1], strlen(line->words[1]), item->flags, item->expires, strlen(text));
    if (!new) return reply(session, line, "SERVER_ERROR out of memory in incr");
    memcpy(item_value(new), text, strlen(text));
    store_put(new);
    reply(session, line, text);
}

static void touch(struct session *session, const struct line *line) {
    uint64_t expires;
    if (line->count != 3 || !expiry(line->words[2], &expires)) {
        return reply(session, line, line->count != 3 ? "ERROR" : "CLIENT_ERROR invalid exptime argument");
    }
    struct item *item = store_find(line->words[1], strlen(line->words[1]));
    if (item) store_touch(item, expires);
    reply(session, line, item ? "TOUCHED" : "NOT_FOUND");
}

static void delete(struct session *session, const struct line *line) {
    int has_zero = line->count == 3 && strcmp(line->words[2], "0") == 0;
    if (line->count != 2 && !has_zero) {
        return reply(session, line, line->count < 2 ? "ERROR" : "CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]");
    }
    reply(session, line, store_remove(line->words[1], strlen(line->words[1])) ? "DELETED" : "NOT_FOUND");
}

static void flush(struct session *session, const struct line *line) {
    uint64_t delay = 0;
    if (line->count > 2) return reply(session, line, "ERROR");
    if (line->count == 2 && !number(line->words[1], &delay)) return reply(session, line, "CLIENT_ERROR invalid exptime argument");
    if (delay) return reply(session, line, "SERVER_ERROR only flushed at once");
    store_clear();
    reply(session, line, "OK");
}

/* There is nothing to be said. */
static void verbosity(struct session *session, const struct line *line) {
    uint64_t level;
    if (line->count != 2) return reply(session, line, "ERROR");
    reply(session, line, number(line->words[1], &level) ? "OK" : "CLIENT_ERROR bad command line format");
}

static void stats(struct session *session, const struct line *line) {
    struct output *output = &session->output;
    if (line->count > 1 || line->is_silent) {
        int is_reset = line->count == 2 && strcmp(line->words[1], "reset") == 0;
        if (is_reset) memset(&counts, 0, sizeof counts);
        return output_print(output, is_reset ? "RESET\r\n" : "ERROR\r\n");
    }
    output_print(output, "STAT pid %d\r\nSTAT uptime %lld\r\nSTAT time %lld\r\n", getpid(), (long long)(time(NULL) - started),
                 (long long)time(NULL));
    output_print(output, "STAT version " KV_VERSION "\r\nSTAT pointer_size %zu\r\n", sizeof(void *) * 8);
    output_print(output, "STAT curr_items %zu\r\nSTAT bytes %zu\r\nSTAT cmd_get %" PRIu64 "\r\nSTAT get_hits %" PRIu64 "\r\n", store_count(), store_bytes(), counts.gets,
                 counts.hits);
    output_print(output, "STAT get_misses %" PRIu64 "\r\nSTAT cmd_set %" PRIu64 "\r\nSTAT chain_clients %u\r\nEND\r\n",
                 counts.gets - counts.hits, counts.sets, serve_clients());
}

/* A client asks for a chain: "chain GID QPN PSN". */
static void chain(struct session *session, const struct line *line) {
    char answer[256];
    if (line->count != 4 || session->chain) return output_print(&session->output, "ERROR\r\n");
    session->chain = serve_open(line->words[1], line->words[2], line->words[3], answer, sizeof answer);
    output_print(&session->output, "%s\r\n", answer);
}

static void execute(struct session *session, const struct line *line) {
    const char *command = line->words[0];
    if (strcmp(command, "get") == 0) get(session, line, 0);
    else if (strcmp(command, "gets") == 0) get(session, line, 1);
    else if (strcmp(command, "delete") == 0) delete(session, line);
    else if (strcmp(command, "incr") == 0) count_up_or_down(session, line, 1);
    else if (strcmp(command, "decr") == 0) count_up_or_down(session, line, 0);
    else if (strcmp(command, "touch") == 0) touch(session, line);
    else if (strcmp(command, "flush_all") == 0) flush(session, line);
    else if (strcmp(command, "stats") == 0) stats(session, line);
    else if (strcmp(command, "version") == 0) output_print(&session->output, "VERSION " KV_VERSION "\r\n");
    else if (strcmp(command, "verbosity") == 0) verbosity(session, line);
    else if (strcmp(command, "quit") == 0) session->is_over = 1;
    else if (strcmp(command, "chain") == 0) chain(session, line);
    else output_print(&session->output, "ERROR\r\n");
}

static int has_value(const char *command) {
    const char *commands[] = {"set", "add", "replace", "append", "prepend", "cas"};
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        if (strcmp(command, commands[i]) == 0) return 1;
    }
    return 0;
}

static struct line split(char *text) {
    struct line line = {.count = 0};
    char *rest = text, *word;
    while (line.count < MAX_WORDS && (word = strtok_r(rest, " ", &rest))) line.words[line.count++] = word;
    if (line.count > 1 && strcmp(line.words[line.count - 1], "noreply") == 0) {
        line.is_silent = 1;
        line.count--;
    }
    return line;
}

size_t protocol_take(struct session *session, char *input, size_t length) {
    char text[MAX_LINE];
    if (!started) started = time(NULL);
    if (session->swallow) {
        size_t used = length < session->swallow ? length : session->swallow;
        session->swallow -= used;
        return used;
    }
    char *end = memchr(input, '\n', length);
    if (!end || (size_t)(end - input) >= sizeof text) {
        if (!end && length < sizeof text) return 0;
        output_print(&session->output, "ERROR line too long\r\n");
        session->is_over = 1;
        return length;
    }
    size_t line_length = (size_t)(end - input), used = line_length + 1;
    memcpy(text, input, line_length);
    text[line_length && text[line_length - 1] == '\r' ? line_length - 1 : line_length] = 0;
    struct line line = split(text);
    if (line.count == 0) {
        output_print(&session->output, "ERROR\r\n");
        return used;
    }
    if (!has_value(line.words[0])) {
        execute(session, &line);
        return used;
    }
    long taken = take_value(session, &line, input + used, length - used);
    return taken < 0 ? 0 : used + (size_t)taken;
}
