/* SPDX-License-Identifier: MIT
 *
 * The frames of an encrypted stream (BAGUA_NET_ENCRYPT), and of one with checksums (BAGUA_NET_CHECKSUM). A frame's
 * header stays readable; its body is encrypted, and a tag behind it authenticates both, and the frame's number on the
 * stream: what is altered, repeated, left out or taken from another stream does not verify. A checksum covers header
 * and body, against accidents. The sender seals a frame into a buffer, from which it is written; the receiver collects
 * one, verifies it, and only then looks at what is in it.
 *
 * Keys are the stream's own, from the job's secret and the random numbers of its handshake. Every BNET_SEAL_REKEY
 * frames both ends go on to the next one. The connection's owner only, but for making and freeing.
 */
#ifndef BNET_SEAL_H
#define BNET_SEAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "wire/wire.h"

#define BNET_SEAL_TAG 16
#define BNET_SEAL_CHECKSUM_SIZE 4
/* The bytes of a slice: a stream needs a buffer of that size at both ends. */
#define BNET_SEAL_SLICE (UINT32_C(128) << 10)
#define BNET_SEAL_BODY_MAX (BNET_WIRE_DATA_HEADER - BNET_WIRE_FRAME_HEADER + BNET_SEAL_SLICE + BNET_SEAL_TAG)
/* 2^20 frames of 128 KiB are 2^33 blocks. RFC 8446, 5.5, allows AES-GCM 2^34.5 (2^24.5 records of 16 KiB) for a key,
 * with a safety margin of about 2^-57. */
#define BNET_SEAL_REKEY (UINT64_C(1) << 20)

enum bnet_seal_kind {
	BNET_SEAL_AES_128_GCM,
	BNET_SEAL_CHACHA20_POLY1305,
	BNET_SEAL_CHECKSUM,
};

/* What the keys come from, of which a checksum needs none. */
struct bnet_seal_origin {
	enum bnet_seal_kind kind;
	uint8_t token[BNET_TOKEN_SIZE];
	uint64_t connection;
	uint32_t serial;
	uint8_t hello[BNET_PROOF_SIZE], challenge[BNET_PROOF_SIZE]; /* the proofs, with their random numbers */
};

struct bnet_seal;
/* sends: of the sender. NULL: no memory, or no libcrypto any more. */
struct bnet_seal *bnet_seal_new(const struct bnet_seal_origin *origin, bool sends);
void bnet_seal_free(struct bnet_seal *seal);

/* ---- the sender ---- */

/* Seals a frame: its header and fixed part, `head`, as the codecs write them, and its payload. 0; -errno: nothing more
 * can be sent on this stream. */
int bnet_seal_frame(struct bnet_seal *seal, const uint8_t *head, size_t head_size, const void *payload, size_t size);
/* The bytes of the sealed frame that have not been written yet. */
const uint8_t *bnet_seal_left(const struct bnet_seal *seal, size_t *size);
void bnet_seal_written(struct bnet_seal *seal, size_t size);

/* ---- the receiver ---- */

/* Begins to collect a frame of that header; its body comes to *to. -EBADMSG: no sender makes one of that length;
 * -ENOMEM. */
int bnet_seal_collect(struct bnet_seal *seal, const uint8_t header[BNET_WIRE_FRAME_HEADER], uint8_t **to);
/* For the log; NULL: the stream is plain, and "". */
const char *bnet_seal_text(const struct bnet_seal *seal);
/* What does not verify, in words. */
const char *bnet_seal_kind_text(const struct bnet_seal *seal);
/* The body is complete. 0: *frame is the frame as a plain stream has it, of *size bytes, until the next one is
 * collected; -EBADMSG: it does not verify. */
int bnet_seal_open(struct bnet_seal *seal, const uint8_t **frame, size_t *size);

#endif
