/* SPDX-License-Identifier: MIT
 *
 * The hash table of ids: consecutive keys, equal keys, removing.
 */
#include "base/table.h"

#include "check.h"

#define MANY 20000

struct item {
	struct bnet_table_entry entry;
	uint64_t value;
};

static struct bnet_table table;
static struct item items[MANY];

static struct item *find(uint64_t key)
{
	struct bnet_table_entry *entry = bnet_table_find(&table, key, NULL);

	return entry ? bnet_entry(entry, struct item, entry) : NULL;
}

static void every_entry_is_found_until_it_is_removed(void)
{
	bnet_table_init(&table);
	check(find(0) == NULL);
	for (uint64_t i = 0; i < MANY; i++)
		bnet_table_add(&table, &items[i].entry, i << 3);
	for (uint64_t i = 0; i < MANY; i++)
		check(find(i << 3) == &items[i]);
	check(find(1) == NULL);
	for (uint64_t i = 0; i < MANY; i += 2)
		bnet_table_remove(&items[i].entry);
	for (uint64_t i = 0; i < MANY; i++)
		check(find(i << 3) == (i % 2 ? &items[i] : NULL));
}

static void entries_of_one_key_are_all_found(void)
{
	struct bnet_table_entry *entry = NULL;
	uint64_t seen = 0;

	bnet_table_init(&table);
	for (uint64_t i = 0; i < 6; i++) {
		items[i].value = i;
		bnet_table_add(&table, &items[i].entry, i % 2);
	}
	while ((entry = bnet_table_find(&table, 1, entry)))
		seen |= UINT64_C(1) << bnet_entry(entry, struct item, entry)->value;
	check_int((long long)seen, 1 << 1 | 1 << 3 | 1 << 5);
}

static void an_entry_may_be_removed_twice_or_without_being_added(void)
{
	struct item item;

	bnet_table_init(&table);
	bnet_table_entry_init(&item.entry);
	bnet_table_remove(&item.entry);
	bnet_table_add(&table, &item.entry, 7);
	bnet_table_remove(&item.entry);
	bnet_table_remove(&item.entry);
	check(find(7) == NULL);
}

/* The serial numbers of descriptors follow each other, and a kind is in their low bits. */
static void consecutive_keys_are_spread(void)
{
	int longest = 0;

	bnet_table_init(&table);
	for (uint64_t i = 0; i < MANY; i++)
		bnet_table_add(&table, &items[i].entry, i << 3 | 3);
	for (int i = 0; i < 1 << BNET_TABLE_BITS; i++) {
		int length = 0;

		bnet_list_each(node, &table.buckets[i])
			length++;
		longest = length > longest ? length : longest;
	}
	check(longest <= 3 * (MANY >> BNET_TABLE_BITS));
}

int main(void)
{
	every_entry_is_found_until_it_is_removed();
	entries_of_one_key_are_all_found();
	an_entry_may_be_removed_twice_or_without_being_added();
	consecutive_keys_are_spread();
	return 0;
}
