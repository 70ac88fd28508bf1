/* SPDX-License-Identifier: MIT
 *
 * What this host's paths have learned, kept for the user's next connections, processes and jobs in /dev/shm: a table of
 * fixed records, each for one device here and one address there. Whatever is read is checked, since anything may stand
 * there: a damaged record, or one that says what cannot be, is none. Readers and writers do not lock: a record that two
 * write at the same time fails its check. Any thread; no state.
 */
#ifndef BNET_MEMORY_H
#define BNET_MEMORY_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#include "device/device.h"

struct bnet_learned {
	int streams;   /* per connection, 1 to BNET_MAX_STREAMS */
	uint64_t rate; /* bytes/s of one of them, a mean; 0: not known */
};

/* False: nothing is known of that path, nothing can be kept here, or BAGUA_NET_PATH_MEMORY is 0. */
bool bnet_memory_recall(const struct bnet_device *dev, const struct sockaddr_storage *peer,
			struct bnet_learned *learned);
/* Takes the place of what was kept of that path, or else of the record that is oldest among a few. */
void bnet_memory_keep(const struct bnet_device *dev, const struct sockaddr_storage *peer,
		      const struct bnet_learned *learned);

#endif
