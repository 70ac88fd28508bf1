/* SPDX-License-Identifier: MIT
 *
 * See ledger.h.
 */
#include "transport/ledger.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define FIRST_ROWS 16
/* The kernel takes memory back in some 50 µs a megabyte, and the engine's lock is held meanwhile. */
#define FREED_AT_A_TIME (UINT64_C(1) << 20)

int bnet_ledger_reserve(struct bnet_ledger *ledger)
{
	uint32_t capacity = ledger->capacity ? 2 * ledger->capacity : FIRST_ROWS;
	struct bnet_sent_slice *rows;

	if (!bnet_ledger_is_full(ledger))
		return 0;
	rows = malloc(capacity * sizeof(*rows));
	if (!rows)
		return -ENOMEM;
	for (uint32_t i = 0; i < ledger->count; i++)
		rows[i] = *bnet_ledger_at(ledger, i);
	free(ledger->rows);
	ledger->rows = rows;
	ledger->capacity = capacity;
	ledger->first = 0;
	return 0;
}

struct bnet_sent_slice *bnet_ledger_at(struct bnet_ledger *ledger, uint32_t i)
{
	return &ledger->rows[(ledger->first + i) % ledger->capacity];
}

void bnet_ledger_add(struct bnet_ledger *ledger, const struct bnet_sent_slice *slice)
{
	*bnet_ledger_at(ledger, ledger->count++) = *slice;
	ledger->held += slice->request != NULL;
}

struct bnet_sent_slice bnet_ledger_take(struct bnet_ledger *ledger)
{
	struct bnet_sent_slice slice = *bnet_ledger_at(ledger, 0);

	ledger->first = (ledger->first + 1) % ledger->capacity;
	ledger->count--;
	ledger->held -= slice.request != NULL;
	return slice;
}

void bnet_ledger_free(struct bnet_ledger *ledger)
{
	free(ledger->rows);
	memset(ledger, 0, sizeof(*ledger));
}

/* ---- copies ---- */

/* The class whose copies have room for so many bytes; BNET_COPY_CLASSES: none. */
static int class_of(uint64_t length)
{
	int class = 0;

	while (class < BNET_COPY_CLASSES && BNET_SMALL_COPY << class < length)
		class ++;
	return class;
}

/* The smallest ones always are: each small message has one. */
static uint64_t kept_for(int class)
{
	return class ? BNET_SMALL_COPY << class : 0;
}

void *bnet_copy_get(struct bnet_copies *copies, uint64_t length)
{
	const int class = class_of(length);
	void *copy = class < BNET_COPY_CLASSES ? copies->free[class] : NULL;

	copies->used = true;
	if (copy) {
		memcpy(&copies->free[class], copy, sizeof(copy));
		copies->kept -= kept_for(class);
	} else {
		copy = malloc(BNET_WIRE_DATA_HEADER + (class < BNET_COPY_CLASSES ? BNET_SMALL_COPY << class : length));
	}
	if (copy)
		copies->bytes += length;
	return copy;
}

void bnet_copy_put(struct bnet_copies *copies, void *copy, uint64_t length)
{
	const int class = class_of(length);

	copies->bytes -= length;
	if (class == BNET_COPY_CLASSES || copies->kept + kept_for(class) > BNET_COPIES_KEPT) {
		free(copy);
		return;
	}
	memcpy(copy, &copies->free[class], sizeof(copy));
	copies->free[class] = copy;
	copies->kept += kept_for(class);
}

/* Of a class: until so many bytes were freed. */
static uint64_t free_class(struct bnet_copies *copies, int class, uint64_t most)
{
	uint64_t freed = 0;

	while (copies->free[class] && freed < most) {
		void *copy = copies->free[class];

		memcpy(&copies->free[class], copy, sizeof(copy));
		free(copy);
		copies->kept -= kept_for(class);
		freed += BNET_SMALL_COPY << class;
	}
	return freed;
}

void bnet_copies_free(struct bnet_copies *copies)
{
	for (int class = 0; class < BNET_COPY_CLASSES; class ++)
		free_class(copies, class, UINT64_MAX);
}

bool bnet_copies_rest(struct bnet_copies *copies)
{
	uint64_t left = copies->used ? 0 : FREED_AT_A_TIME;

	copies->used = false;
	for (int class = 0; class < BNET_COPY_CLASSES; class ++) {
		const uint64_t freed = free_class(copies, class, left);

		left -= freed < left ? freed : left;
		if (copies->free[class])
			return true;
	}
	return false;
}
