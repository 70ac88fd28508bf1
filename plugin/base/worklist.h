/* SPDX-License-Identifier: MIT
 *
 * A list of what has work. Any thread adds to it, without a lock; the list's owner collects what was added in an
 * ordinary list, and takes out what has no work left. An item is in it at most once. A thread that has made work looks
 * after that whether its item is listed; the owner looks for work once more after it has taken an item out. So one of
 * the two sees the other.
 */
#ifndef BNET_WORKLIST_H
#define BNET_WORKLIST_H

#include <stdatomic.h>
#include <stdbool.h>

#include "common/list.h"

struct bnet_work_item {
	struct bnet_node node;       /* the owner's */
	struct bnet_work_item *next; /* of those that were added and not collected */
	_Atomic bool listed;
};

struct bnet_worklist {
	_Atomic(struct bnet_work_item *) added;
	struct bnet_work_item *taken; /* the owner's, as is what follows: taken from there, to be collected */
	struct bnet_node items;       /* collected */
	int count;
};

static inline void bnet_work_item_init(struct bnet_work_item *item)
{
	bnet_list_init(&item->node);
	atomic_init(&item->listed, false);
}

static inline void bnet_worklist_init(struct bnet_worklist *list)
{
	atomic_init(&list->added, NULL);
	list->taken = NULL;
	bnet_list_init(&list->items);
	list->count = 0;
}

/* Any thread. */
static inline bool bnet_work_item_listed(const struct bnet_work_item *item)
{
	return atomic_load(&item->listed);
}

/* Any thread. False: it was listed. */
static inline bool bnet_worklist_add(struct bnet_worklist *list, struct bnet_work_item *item)
{
	if (atomic_exchange(&item->listed, true))
		return false;
	item->next = atomic_load(&list->added);
	while (!atomic_compare_exchange_weak(&list->added, &item->next, item))
		;
	return true;
}

/* The owner, as are the following: collects an item that was added. NULL: all are collected. */
static inline struct bnet_work_item *bnet_worklist_collect(struct bnet_worklist *list)
{
	struct bnet_work_item *item;

	if (!list->taken)
		list->taken = atomic_exchange(&list->added, NULL);
	item = list->taken;
	if (!item)
		return NULL;
	list->taken = item->next;
	bnet_list_add(&list->items, &item->node);
	list->count++;
	return item;
}

static inline bool bnet_work_item_collected(const struct bnet_work_item *item)
{
	return !bnet_list_empty(&item->node);
}

/* A collected item. */
static inline void bnet_worklist_remove(struct bnet_worklist *list, struct bnet_work_item *item)
{
	bnet_list_remove(&item->node);
	list->count--;
	atomic_store(&item->listed, false);
}

static inline bool bnet_worklist_empty(struct bnet_worklist *list)
{
	return list->count == 0 && !list->taken && !atomic_load(&list->added);
}

/* Goes round the collected items: the one it returned longest ago. NULL: nothing is collected. */
static inline struct bnet_work_item *bnet_worklist_next(struct bnet_worklist *list)
{
	struct bnet_node *first = list->items.next;

	if (first == &list->items)
		return NULL;
	bnet_list_remove(first);
	bnet_list_add(&list->items, first);
	return bnet_entry(first, struct bnet_work_item, node);
}

#endif
