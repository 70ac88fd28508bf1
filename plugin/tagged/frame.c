/* SPDX-License-Identifier: MIT
 *
 * The frame codec of the tagged messages. Pure.
 */
#include "tagged/frame.h"

#include <string.h>

size_t bnet_tagged_frame_encode(char *slot, const struct bnet_tagged_frame *frame, const void *payload)
{
	memcpy(slot, frame, sizeof(*frame));
	if (frame->kind != BNET_TAGGED_EAGER)
		return sizeof(*frame);
	if (frame->bytes > 0)
		memcpy(slot + sizeof(*frame), payload, frame->bytes);
	return sizeof(*frame) + frame->bytes;
}

const char *bnet_tagged_frame_decode(const char *slot, size_t bytes, struct bnet_tagged_frame *out)
{
	if (bytes < sizeof(*out))
		return NULL;
	memcpy(out, slot, sizeof(*out));
	if (out->kind == BNET_TAGGED_EAGER ? out->bytes != bytes - sizeof(*out) : bytes != sizeof(*out))
		return NULL;
	if (out->kind < BNET_TAGGED_EAGER || out->kind > BNET_TAGGED_CREDIT)
		return NULL;
	return slot + sizeof(*out);
}
