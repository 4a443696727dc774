#include "store.h"
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { BUCKETS = 1 << 16 };

static struct item *buckets[BUCKETS];
static store_watcher watch;
static uint64_t last_cas;
static size_t count;

void store_watch(store_watcher watcher) { watch = watcher; }

static struct item **place(const char *key, size_t key_length) {
    uint64_t hash = 0xcbf29ce484222325; /* FNV-1a */
    for (size_t i = 0; i < key_length; i++) hash = (hash ^ (uint8_t)key[i]) * 0x100000001b3;
    struct item **at = &buckets[(hash ^ hash >> 32) % BUCKETS];
    while (*at && ((*at)->key_length != key_length || memcmp((*at)->bytes, key, key_length) != 0)) at = &(*at)->next;
    return at;
}

static void drop(struct item **at) {
    struct item *item = *at;
    if (watch) watch(item->bytes, item->key_length, NULL);
    *at = item->next;
    count--;
    free(item);
}

struct item *store_find(const char *key, size_t key_length) {
    struct item **at = place(key, key_length);
    if (*at && (*at)->expires && (*at)->expires <= (uint64_t)time(NULL)) drop(at);
    return *at;
}

struct item *store_make(const char *key, size_t key_length, uint32_t flags, uint64_t expires, size_t length) {
    struct item *item = malloc(sizeof *item + key_length + length);
    if (!item) return NULL;
    *item = (struct item){.expires = expires, .flags = flags, .key_length = (uint32_t)key_length, .length = length};
    memcpy(item->bytes, key, key_length);
    return item;
}

void store_put(struct item *item) {
    struct item **at = place(item->bytes, item->key_length), *old = *at;
    item->cas = ++last_cas;
    item->next = old ? old->next : NULL;
    *at = item;
    count += old == NULL;
    free(old);
    if (watch) watch(item->bytes, item->key_length, item);
}

void store_touch(struct item *item, uint64_t expires) {
    item->expires = expires;
    if (watch) watch(item->bytes, item->key_length, item);
}

int store_remove(const char *key, size_t key_length) {
    int found = store_find(key, key_length) != NULL;
    if (found) drop(place(key, key_length));
    return found;
}

void store_clear(void) {
    for (size_t i = 0; i < BUCKETS; i++) {
        while (buckets[i]) drop(&buckets[i]);
    }
}

size_t store_count(void) { return count; }
