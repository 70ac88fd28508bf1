/* SPDX-License-Identifier: MIT
 *
 * The frames of the tagged messages. Pure: any thread may call everything here.
 *
 *   EAGER   a small message, payload included. The receiver keeps it until a receive matches
 *   RTS     request to send: tag and size of a large message, or of a small one beyond the window. The payload stays at
 *           the sender
 *   CTS     clear to send: the answer once a receive matches, with the receive's size. If that is the message's, the
 *           receive's buffer is ready. An empty message is complete with it
 *   DATA    the payload follows, in chunks, into that buffer
 *   CREDIT  no content besides the header
 *   OFFER   an RTS with the address of the payload, to a rank of the same host, which may read it there
 *   READ    the answer to it: the payload was read
 *
 * A message of the network carries one frame, or as many as fit into a slot. A DATA is the last one of its message.
 *
 * Every frame returns credit: the receiver of eager messages tells their sender how many bytes were handed on. Frames
 * are in the machine's byte order, as the elements are.
 */
#ifndef BNET_TAGGED_FRAME_H
#define BNET_TAGGED_FRAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
	BNET_TAGGED_EAGER = 1,
	BNET_TAGGED_RTS,
	BNET_TAGGED_CTS,
	BNET_TAGGED_DATA,
	BNET_TAGGED_CREDIT,
	BNET_TAGGED_OFFER,
	BNET_TAGGED_READ,
};

struct bnet_tagged_frame {
	uint64_t kind;
	uint64_t key; /* all but EAGER and CREDIT: names the message; chosen by its sender */
	int64_t tag;
	uint64_t bytes;  /* of the message; CTS: of the receive */
	uint64_t credit; /* bytes of eager messages handed on since the last frame */
};

/* The payload of an OFFER: where its sender has the message. */
struct bnet_tagged_offer {
	int64_t process;
	uint64_t buffer;
	uint64_t token_at; /* as long as the message may be read, this memory holds … */
	uint64_t token;    /* … this value, which the process uses for no other message */
};

/* The largest payload of an EAGER. */
#define BNET_TAGGED_EAGER_MAX ((size_t)8 * 1024)
/* Bytes of eager messages that a sender may have outstanding: sent, and not yet returned as credit. */
#define BNET_TAGGED_WINDOW ((uint64_t)256 * 1024)
/* The largest frame, and the largest message of frames. */
#define BNET_TAGGED_SLOT (sizeof(struct bnet_tagged_frame) + BNET_TAGGED_EAGER_MAX)

/* An eager message's share of the window. The header counts as well, which bounds the number of empty messages. */
static inline uint64_t bnet_tagged_frame_cost(const struct bnet_tagged_frame *eager)
{
	return sizeof(*eager) + eager->bytes;
}

/* Bytes that follow the header within the frame. */
static inline size_t bnet_tagged_frame_payload(const struct bnet_tagged_frame *frame)
{
	if (frame->kind == BNET_TAGGED_OFFER)
		return sizeof(struct bnet_tagged_offer);
	return frame->kind == BNET_TAGGED_EAGER ? frame->bytes : 0;
}

/* Writes a frame into a slot, with its payload. Returns the frame's bytes. */
size_t bnet_tagged_frame_encode(char *slot, const struct bnet_tagged_frame *frame, const void *payload);
/* Reads the first frame of that many bytes; returns its payload, behind which the next frame begins. NULL:
 * malformed. */
const char *bnet_tagged_frame_decode(const char *slot, size_t bytes, struct bnet_tagged_frame *out);

#endif
