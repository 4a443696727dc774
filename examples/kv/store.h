/* The server's items, by key. */
#pragma once
#include <stddef.h>
#include <stdint.h>

enum { KV_MAX_KEY = 250, KV_MAX_VALUE = 1 << 20, KV_MEMORY = 64 << 20 };

struct item {
    struct item *next;          /* in its bucket */
    struct item *newer, *older; /* by use, of those that are stored */
    uint64_t expires; /* seconds since 1970; 0 for never */
    uint64_t cas;     /* unique for each content */
    uint32_t flags;
    uint32_t key_length;
    size_t length;
    char bytes[]; /* key, then value */
};

static inline char *item_value(struct item *item) { return item->bytes + item->key_length; }

/* Called with what a key has now; NULL: it has gone. */
typedef void (*store_watcher)(const char *key, size_t key_length, const struct item *item);

void store_watch(store_watcher watcher);

/* Bytes that items may take, KV_MEMORY if not set: beyond, those go that were not used for the longest time. */
void store_limit(size_t bytes);
size_t store_bytes(void);

/* The item of a key, unless it has expired. */
struct item *store_find(const char *key, size_t key_length);

/* A new item with room for a value, not stored yet; NULL without memory. The item that was found last stays. */
struct item *store_make(const char *key, size_t key_length, uint32_t flags, uint64_t expires, size_t length);

/* Stores an item instead of the one that its key had. */
void store_put(struct item *item);

/* Frees an item that is not stored. */
void store_drop(struct item *item);

/* Changes when an item expires. */
void store_touch(struct item *item, uint64_t expires);

/* Whether there was one. */
int store_remove(const char *key, size_t key_length);
void store_clear(void);

size_t store_count(void);
