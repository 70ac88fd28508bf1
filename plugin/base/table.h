/* SPDX-License-Identifier: MIT
 *
 * An intrusive hash table of 64-bit keys, for the engine's ids. Several entries may have one key. Adding allocates
 * nothing and so cannot fail: the number of buckets is fixed, enough for some ten thousand entries. No locking: the
 * owner of a table guards it.
 */
#ifndef BNET_TABLE_H
#define BNET_TABLE_H

#include <stdint.h>

#include "common/list.h"

#define BNET_TABLE_BITS 11

struct bnet_table_entry {
	struct bnet_node node;
	uint64_t key;
};

struct bnet_table {
	struct bnet_node buckets[1 << BNET_TABLE_BITS];
};

static inline void bnet_table_init(struct bnet_table *table)
{
	for (int i = 0; i < 1 << BNET_TABLE_BITS; i++)
		bnet_list_init(&table->buckets[i]);
}

/* Keys may be consecutive numbers or be chosen by a peer. */
static inline struct bnet_node *bnet_table_bucket(struct bnet_table *table, uint64_t key)
{
	return &table->buckets[key * UINT64_C(0x9e3779b97f4a7c15) >> (64 - BNET_TABLE_BITS)];
}

static inline void bnet_table_add(struct bnet_table *table, struct bnet_table_entry *entry, uint64_t key)
{
	entry->key = key;
	bnet_list_add(bnet_table_bucket(table, key), &entry->node);
}

/* An entry that is in no table, so that it may be removed. */
static inline void bnet_table_entry_init(struct bnet_table_entry *entry)
{
	bnet_list_init(&entry->node);
}

/* Removing an entry twice is harmless. */
static inline void bnet_table_remove(struct bnet_table_entry *entry)
{
	bnet_list_remove(&entry->node);
}

/* Returns the entry with this key that follows `after`, the first one if `after` is NULL; NULL at the end. */
static inline struct bnet_table_entry *bnet_table_find(struct bnet_table *table, uint64_t key,
						       const struct bnet_table_entry *after)
{
	struct bnet_node *bucket = bnet_table_bucket(table, key);

	for (struct bnet_node *node = after ? after->node.next : bucket->next; node != bucket; node = node->next) {
		struct bnet_table_entry *entry = bnet_entry(node, struct bnet_table_entry, node);

		if (entry->key == key)
			return entry;
	}
	return NULL;
}

#endif
