/* SPDX-License-Identifier: MIT
 *
 * An intrusive, doubly linked ring for the engine's lists. A node is the head of a list or a member of one. No locking:
 * the owner of a list guards it.
 */
#ifndef BNET_LIST_H
#define BNET_LIST_H

#include <stdbool.h>
#include <stddef.h>

struct bnet_node {
	struct bnet_node *next, *prev;
};

static inline void bnet_list_init(struct bnet_node *head)
{
	head->next = head->prev = head;
}

static inline bool bnet_list_empty(const struct bnet_node *head)
{
	return head->next == head;
}

static inline void bnet_list_add(struct bnet_node *head, struct bnet_node *node)
{
	node->prev = head->prev;
	node->next = head;
	head->prev->next = node;
	head->prev = node;
}

/* Removing a node twice is harmless. */
static inline void bnet_list_remove(struct bnet_node *node)
{
	node->prev->next = node->next;
	node->next->prev = node->prev;
	node->next = node->prev = node;
}

#define bnet_entry(ptr, type, member) ((type *)(void *)((char *)(ptr)-offsetof(type, member)))

/* The body may remove its node. */
#define bnet_list_each(pos, head)                                                          \
	for (struct bnet_node *pos = (head)->next, *pos##_next = pos->next; pos != (head); \
	     pos = pos##_next, pos##_next = pos->next)

#endif
