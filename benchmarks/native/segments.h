/* SPDX-License-Identifier: MIT
 *
 * A large packet as the kernel hands it to a network card that cuts it into segments of the wire itself: a struct
 * virtio_net_hdr, headers of IPv4 and TCP, and the payload of many segments. Tells how many there are and makes a packet
 * of some of them, which is as large a packet again. Pure: from any thread.
 */
#ifndef SEGMENTS_H
#define SEGMENTS_H

#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#define SEGMENTS_MAX_HEADERS 130 /* virtio_net_hdr 10, IPv4 and TCP 60 each with options */

struct segments {
	const char *packet;
	size_t size;
	uint32_t count;   /* 1 for whatever is no large packet of TCP and IPv4 */
	size_t headers;   /* bytes of all three */
	size_t each;      /* payload of all but the last, in bytes */
};

/* packet: with its virtio_net_hdr, of which `size` has to hold one; must outlive *out. */
void segments_find(const void *packet, size_t size, struct segments *out);
/* Those from `first` to before `end`, of a large packet. headers: room for them; parts: what to write, in order. */
void segments_cut(const struct segments *whole, uint32_t first, uint32_t end, char headers[SEGMENTS_MAX_HEADERS],
		  struct iovec parts[2]);

#endif
