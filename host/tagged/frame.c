/* SPDX-License-Identifier: MIT
 *
 * The frame codec of the tagged messages. Pure.
 */
#include "tagged/frame.h"

#include <string.h>

size_t bnet_tagged_frame_encode(char *slot, const struct bnet_tagged_frame *frame, const void *payload)
{
	const size_t bytes = bnet_tagged_frame_payload(frame);

	memcpy(slot, frame, sizeof(*frame));
	if (bytes > 0)
		memcpy(slot + sizeof(*frame), payload, bytes);
	return sizeof(*frame) + bytes;
}

const char *bnet_tagged_frame_decode(const char *slot, size_t bytes, struct bnet_tagged_frame *out)
{
	if (bytes < sizeof(*out))
		return NULL;
	memcpy(out, slot, sizeof(*out));
	if (out->kind < BNET_TAGGED_EAGER || out->kind > BNET_TAGGED_READ)
		return NULL;
	return bnet_tagged_frame_payload(out) <= bytes - sizeof(*out) ? slot + sizeof(*out) : NULL;
}
