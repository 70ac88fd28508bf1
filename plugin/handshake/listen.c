/* SPDX-License-Identifier: MIT
 *
 * See listen.h.
 */
#include "handshake/listen.h"

#include <string.h>

#include "handshake/listener.h"

/* On every member; *first: the first one's address. 0, or -errno if none of them can be listened on. */
static int open_listeners(const struct bnet_device *dev, struct sockaddr_storage *first)
{
	int error = 0;
	bool found = false;

	for (int i = 0; i < dev->nmembers; i++) {
		int nic = bnet_listener_number(dev->members[i]), rc = bnet_listener_open(nic);

		if (rc == 0 && !found)
			*first = bnet_engine.listeners[nic].addr;
		if (rc == 0)
			found = true;
		else
			error = rc;
	}
	return found ? 0 : error;
}

/* Tokens are random. */
static uint64_t token_key(const uint8_t token[BNET_TOKEN_SIZE])
{
	uint64_t key;

	memcpy(&key, token, sizeof(key));
	return key;
}

int bnet_listen_start(struct bnet_listen *listen)
{
	int rc = open_listeners(listen->dev, &listen->addr);

	if (rc < 0)
		return rc;
	bnet_list_add(&bnet_engine.listens, &listen->node);
	bnet_table_add(&bnet_engine.listens_by_token, &listen->by_token, token_key(listen->token));
	return 0;
}

void bnet_listen_stop(struct bnet_listen *listen)
{
	bnet_list_remove(&listen->node);
	bnet_table_remove(&listen->by_token);
}

struct bnet_listen *bnet_listen_find(const uint8_t token[BNET_TOKEN_SIZE])
{
	struct bnet_table *table = &bnet_engine.listens_by_token;
	struct bnet_table_entry *entry = NULL;

	while ((entry = bnet_table_find(table, token_key(token), entry))) {
		struct bnet_listen *listen = bnet_entry(entry, struct bnet_listen, by_token);

		if (memcmp(listen->token, token, BNET_TOKEN_SIZE) == 0)
			return listen;
	}
	return NULL;
}
