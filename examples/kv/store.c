#include "store.h"
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { BUCKETS = 1 << 16 };

static struct item *buckets[BUCKETS];
static store_watcher watch;
static uint64_t last_cas;
static size_t count, used, limit = KV_MEMORY;
static struct item *newest, *oldest;

void store_watch(store_watcher watcher) { watch = watcher; }
void store_limit(size_t bytes) { limit = bytes; }
size_t store_bytes(void) { return used; }

static size_t size(const struct item *item) { return sizeof *item + item->key_length + item->length; }

void store_drop(struct item *item) {
    used -= size(item);
    free(item);
}

static void unlist(struct item *item) {
    *(item->newer ? &item->newer->older : &newest) = item->older;
    *(item->older ? &item->older->newer : &oldest) = item->newer;
}

static void list(struct item *item) {
    item->newer = NULL;
    item->older = newest;
    *(newest ? &newest->newer : &oldest) = item;
    newest = item;
}

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
    unlist(item);
    store_drop(item);
}

struct item *store_find(const char *key, size_t key_length) {
    struct item **at = place(key, key_length);
    if (*at && (*at)->expires && (*at)->expires <= (uint64_t)time(NULL)) {
        drop(at);
        return NULL;
    }
    if (*at) {
        unlist(*at);
        list(*at);
    }
    return *at;
}

struct item *store_make(const char *key, size_t key_length, uint32_t flags, uint64_t expires, size_t length) {
    size_t needed = sizeof(struct item) + key_length + length;
    while (used + needed > limit && oldest && oldest != newest) drop(place(oldest->bytes, oldest->key_length));
    struct item *item = used + needed > limit ? NULL : malloc(needed);
    if (!item) return NULL;
    used += needed;
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
    if (old) {
        unlist(old);
        store_drop(old);
    }
    list(item);
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
