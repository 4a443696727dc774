/* shell HOST [PORT]: commands of memcached's, line by line; `get` goes by chain where it can.
 *
 * rdmesh run --name b --net blue --ip 10.7.0.3 -- shell 10.7.0.2
 *
 *   get KEY              prints "chain VALUE", "socket VALUE" or "miss"
 *   set KEY VALUE        and any other command without data, such as delete KEY: prints the server's answer
 *   check KEY COUNT      gets KEY so often both ways; prints "same", or the first difference
 *   watch KEY SECONDS    gets KEY for so long by chain; prints "COUNT gets, longest MICROSECONDS" */
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

static void obey(struct kv_client *client, char *line) {
    char key[256], value[1024], command[300];
    double amount;
    if (sscanf(line, "get %255s", key) == 1) {
        struct kv_result result = kv_get(client, key);
        print(&result);
    } else if (sscanf(line, "check %255s %lf", key, &amount) == 2) {
        check(client, key, (int)amount);
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
