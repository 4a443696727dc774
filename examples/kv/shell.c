/* shell HOST [PORT]: commands of memcached's, line by line; `get` goes by chain where it can.
 *
 * rdmesh run --name b --net blue --ip 10.7.0.3 -- shell 10.7.0.2
 *
 *   get KEY              prints "chain VALUE", "socket VALUE" or "miss"
 *   set KEY VALUE        and any other command without data, such as delete KEY: prints the server's answer
 *   check KEY COUNT      gets KEY so often both ways; prints "same", or the first difference
 *   watch KEY SECONDS    gets KEY for so long by chain; prints "COUNT gets, longest MICROSECONDS"
 *   fill PREFIX COUNT    sets as many keys, PREFIX0 and so on, to some 1000 bytes each; prints how many were stored
 *   verify PREFIX COUNT  gets them; prints "COUNT by chain, COUNT by socket, COUNT missing", or a key with a wrong value
 *   rising KEY SECONDS   gets KEY for so long, a number that others raise; prints "COUNT by chain, COUNT by socket", or where it fell */
#include "client.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (double)at.tv_sec + (double)at.tv_nsec / 1e9;
}

static void print(const struct kv_result *result) {
    if (result->way == KV_NONE) puts("miss");
    else printf("%s %.*s\n", result->way == KV_CHAIN ? "chain" : "socket", (int)result->length, result->bytes);
}

static void check(struct kv_client *client, const char *key, int count) {
    for (int i = 0; i < count; i++) {
        struct kv_result first = kv_get(client, key);
        char *copy = first.length ? memcpy(malloc(first.length), first.bytes, first.length) : NULL;
        struct kv_result second = kv_get_by_socket(client, key);
        int is_same = (first.way == KV_NONE) == (second.way == KV_NONE) && first.length == second.length && first.flags == second.flags &&
                      (first.length == 0 || memcmp(copy, second.bytes, first.length) == 0);
        free(copy);
        if (!is_same) {
            printf("differs at %d\n", i);
            return;
        }
    }
    puts("same");
}

static void watch(struct kv_client *client, const char *key, double seconds) {
    double begin = now(), last = begin, longest = 0;
    long count = 0;
    while (last < begin + seconds) {
        struct kv_result result = kv_get(client, key);
        double at = now();
        if (result.way != KV_CHAIN) {
            printf("%s after %ld gets\n", result.way == KV_NONE ? "miss" : "socket", count);
            return;
        }
        longest = at - last > longest ? at - last : longest;
        last = at;
        count++;
    }
    printf("%ld gets, longest %.0f\n", count, longest * 1e6);
}

static void rising(struct kv_client *client, const char *key, double seconds) {
    long ways[3] = {0};
    unsigned long long last = 0;
    for (double end = now() + seconds; now() < end;) {
        char text[32];
        struct kv_result result = kv_get(client, key);
        snprintf(text, sizeof text, "%.*s", (int)(result.length < 31 ? result.length : 31), result.way == KV_NONE ? "0" : result.bytes);
        unsigned long long number = strtoull(text, NULL, 10);
        if (result.way != KV_NONE && number < last) {
            printf("fell from %llu to %llu by %s\n", last, number, result.way == KV_CHAIN ? "chain" : "socket");
            return;
        }
        last = result.way == KV_NONE ? last : number;
        ways[result.way]++;
    }
    printf("%ld by chain, %ld by socket\n", ways[KV_CHAIN], ways[KV_SOCKET]);
}

enum { VALUE = 1000 };

/* The value of a key of `fill`. */
static void value_of(int number, char value[VALUE]) {
    memset(value, 'z', VALUE);
    memcpy(value, &number, sizeof number);
}

static void fill(struct kv_client *client, const char *prefix, int count) {
    int stored = 0;
    char command[300], value[VALUE];
    for (int i = 0; i < count; i++) {
        snprintf(command, sizeof command, "set %s%d 0 0 %d", prefix, i, VALUE);
        value_of(i, value);
        const char *answer = kv_command(client, command, value, VALUE);
        stored += answer && strcmp(answer, "STORED") == 0;
    }
    printf("%d stored\n", stored);
}

static void verify(struct kv_client *client, const char *prefix, int count) {
    int ways[3] = {0};
    char key[300], value[VALUE];
    for (int i = 0; i < count; i++) {
        snprintf(key, sizeof key, "%s%d", prefix, i);
        value_of(i, value);
        struct kv_result result = kv_get(client, key);
        if (result.way != KV_NONE && (result.length != VALUE || memcmp(result.bytes, value, VALUE) != 0)) {
            printf("%s is wrong\n", key);
            return;
        }
        ways[result.way]++;
    }
    printf("%d by chain, %d by socket, %d missing\n", ways[KV_CHAIN], ways[KV_SOCKET], ways[KV_NONE]);
}

static void obey(struct kv_client *client, char *line) {
    char key[256], value[1024], command[300];
    double amount;
    if (sscanf(line, "get %255s", key) == 1) {
        struct kv_result result = kv_get(client, key);
        print(&result);
    } else if (sscanf(line, "check %255s %lf", key, &amount) == 2) {
        check(client, key, (int)amount);
    } else if (sscanf(line, "fill %255s %lf", key, &amount) == 2) {
        fill(client, key, (int)amount);
    } else if (sscanf(line, "verify %255s %lf", key, &amount) == 2) {
        verify(client, key, (int)amount);
    } else if (sscanf(line, "rising %255s %lf", key, &amount) == 2) {
        rising(client, key, amount);
    } else if (sscanf(line, "watch %255s %lf", key, &amount) == 2) {
        watch(client, key, amount);
    } else {
        int has_value = sscanf(line, "set %255s %1023[^\n]", key, value) == 2;
        if (has_value) snprintf(command, sizeof command, "set %s 0 0 %zu", key, strlen(value));
        const char *answer = kv_command(client, has_value ? command : line, has_value ? value : NULL, has_value ? strlen(value) : 0);
        puts(answer ? answer : "the server has gone");
    }
}

int main(int argc, char **argv) {
    char line[2048];
    struct kv_client *client = argc > 1 ? kv_client_open(argv[1], argc > 2 ? argv[2] : "11211") : NULL;
    if (!client) {
        fprintf(stderr, "usage: shell HOST [PORT]; or the server is not there\n");
        return 1;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    while (fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\n")] = 0;
        obey(client, line);
    }
    kv_client_close(client);
    return 0;
}
