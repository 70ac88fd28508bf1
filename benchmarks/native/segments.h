/* SPDX-License-Identifier: MIT
 *
 * A large packet as the kernel hands it to a network card with segmentation offload: a struct virtio_net_hdr, the
 * headers of IPv4 and TCP, and the payload of many segments. Counts the segments and makes a packet of a range of them.
 * Pure functions, callable from any thread.
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
	uint32_t count; /* 1 for anything but a large packet of TCP and IPv4 */
	size_t headers; /* bytes of all three */
	size_t each;    /* payload bytes of all but the last */
};

/* packet: starts with its virtio_net_hdr, so `size` is at least that; must outlive *out. */
void segments_find(const void *packet, size_t size, struct segments *out);
/* A packet of the segments first to end − 1 of a large packet. headers: room for them; parts: to write, in order. */
void segments_cut(const struct segments *whole, uint32_t first, uint32_t end, char headers[SEGMENTS_MAX_HEADERS],
		  struct iovec parts[2]);

#endif
