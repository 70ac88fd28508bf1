/* SPDX-License-Identifier: MIT
 *
 * See seal.h.
 */
#include "transport/seal.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/crc32c.h"
#include "base/crypto.h"
#include "base/secret.h"
#include "common/kernel.h"

#define STREAM_SECRET 32
#define LABEL "bagua-net stream 1"

static_assert(BNET_SEAL_TAG == BNET_CIPHER_TAG, "the tag is the cipher's");

struct bnet_seal {
	enum bnet_seal_kind kind;
	struct bnet_cipher *cipher;    /* NULL: it has a checksum */
	uint8_t secret[STREAM_SECRET]; /* of which the present key is */
	uint8_t nonce[BNET_CIPHER_NONCE];
	uint64_t frames; /* sealed, or opened */
	uint8_t *buffer; /* a frame: header, body, tag */
	size_t capacity;
	size_t from, to; /* of the sender's: not written yet; of the receiver's, `to` is the frame's size */
};

const char *bnet_seal_text(const struct bnet_seal *seal)
{
	static const char *const texts[] = {
		[BNET_SEAL_AES_128_GCM] = ", encrypted with AES-128-GCM",
		[BNET_SEAL_CHACHA20_POLY1305] = ", encrypted with ChaCha20-Poly1305",
		[BNET_SEAL_CHECKSUM] = ", with CRC-32C checksums",
	};

	return seal ? texts[seal->kind] : "";
}

static size_t tag_size(const struct bnet_seal *seal)
{
	return seal->cipher ? BNET_SEAL_TAG : BNET_SEAL_CHECKSUM_SIZE;
}

/* ---- keys ---- */

static enum bnet_cipher_kind cipher_of(enum bnet_seal_kind kind)
{
	return kind == BNET_SEAL_AES_128_GCM ? BNET_CIPHER_AES_128_GCM : BNET_CIPHER_CHACHA20_POLY1305;
}

static struct bnet_crypto_bytes text(const char *bytes)
{
	return (struct bnet_crypto_bytes){bytes, strlen(bytes)};
}

static int next_of(const uint8_t secret[STREAM_SECRET], const char *what, uint8_t *out, size_t size)
{
	return bnet_crypto_hkdf((struct bnet_crypto_bytes){secret, STREAM_SECRET}, text(""), text(what), out, size);
}

static int use_secret(struct bnet_seal *seal)
{
	uint8_t key[BNET_CIPHER_KEY_MAX];
	int rc = next_of(seal->secret, "key", key, bnet_cipher_key_size(cipher_of(seal->kind)));

	if (rc == 0)
		rc = next_of(seal->secret, "nonce", seal->nonce, sizeof(seal->nonce));
	if (rc == 0)
		rc = bnet_cipher_set_key(seal->cipher, key);
	bnet_wipe(key, sizeof(key));
	return rc;
}

static int first_secret(struct bnet_seal *seal, const struct bnet_seal_origin *origin)
{
	const struct bnet_secret *secret = bnet_secret();
	uint8_t salt[2 * BNET_PROOF_NONCE], info[sizeof(LABEL) + BNET_TOKEN_SIZE + 8 + 4], *p = info;

	memcpy(salt, origin->hello, BNET_PROOF_NONCE);
	memcpy(salt + BNET_PROOF_NONCE, origin->challenge, BNET_PROOF_NONCE);
	memcpy(p, LABEL, sizeof(LABEL));
	memcpy(p += sizeof(LABEL), origin->token, BNET_TOKEN_SIZE);
	p += BNET_TOKEN_SIZE;
	for (int i = 0; i < 8; i++)
		*p++ = (uint8_t)(origin->connection >> 8 * i);
	for (int i = 0; i < 4; i++)
		*p++ = (uint8_t)(origin->serial >> 8 * i);
	return bnet_crypto_hkdf((struct bnet_crypto_bytes){secret->bytes, secret->size},
				(struct bnet_crypto_bytes){salt, sizeof(salt)},
				(struct bnet_crypto_bytes){info, sizeof(info)}, seal->secret, sizeof(seal->secret));
}

/* The number of the frame in the nonce (RFC 8446, 5.3). Both ends count alike. */
static int next_nonce(struct bnet_seal *seal, uint8_t nonce[BNET_CIPHER_NONCE])
{
	const uint64_t number = seal->frames++;
	uint8_t secret[STREAM_SECRET];
	int rc = 0;

	if (number && number % BNET_SEAL_REKEY == 0) {
		rc = next_of(seal->secret, "next", secret, sizeof(secret));
		if (rc == 0) {
			memcpy(seal->secret, secret, sizeof(secret));
			rc = use_secret(seal);
		}
		bnet_wipe(secret, sizeof(secret));
	}
	memcpy(nonce, seal->nonce, BNET_CIPHER_NONCE);
	for (int i = 0; i < 8; i++)
		nonce[BNET_CIPHER_NONCE - 1 - i] ^= (uint8_t)(number >> 8 * i);
	return rc;
}

/* ---- making and freeing ---- */

struct bnet_seal *bnet_seal_new(const struct bnet_seal_origin *origin, bool sends)
{
	struct bnet_seal *seal = calloc(1, sizeof(*seal));

	if (!seal)
		return NULL;
	seal->kind = origin->kind;
	if (seal->kind == BNET_SEAL_CHECKSUM)
		return seal;
	seal->cipher = bnet_cipher_new(cipher_of(seal->kind), sends);
	if (seal->cipher && first_secret(seal, origin) == 0 && use_secret(seal) == 0)
		return seal;
	bnet_seal_free(seal);
	return NULL;
}

/* A receiver's has what was decrypted. */
static void free_buffer(struct bnet_seal *seal)
{
	if (seal->buffer && seal->cipher)
		bnet_wipe(seal->buffer, seal->capacity);
	free(seal->buffer);
}

void bnet_seal_free(struct bnet_seal *seal)
{
	if (!seal)
		return;
	free_buffer(seal);
	bnet_cipher_free(seal->cipher);
	bnet_wipe(seal, sizeof(*seal));
	free(seal);
}

/* Most messages of a stream are of like size. */
static int reserve(struct bnet_seal *seal, size_t size)
{
	size_t capacity = seal->capacity ? seal->capacity : 1024;
	uint8_t *buffer;

	if (size <= seal->capacity)
		return 0;
	while (capacity < size)
		capacity *= 2;
	if (capacity > BNET_WIRE_FRAME_HEADER + BNET_SEAL_BODY_MAX)
		capacity = BNET_WIRE_FRAME_HEADER + BNET_SEAL_BODY_MAX;
	buffer = malloc(capacity);
	if (!buffer)
		return -ENOMEM;
	free_buffer(seal);
	seal->buffer = buffer;
	seal->capacity = capacity;
	return 0;
}

/* ---- the sender ---- */

static uint32_t checksum_of(const uint8_t *frame, size_t size)
{
	return bnet_crc32c(0, frame, size);
}

static void put_checksum(uint8_t *to, uint32_t checksum)
{
	for (int i = 0; i < BNET_SEAL_CHECKSUM_SIZE; i++)
		to[i] = (uint8_t)(checksum >> 8 * i);
}

/* Behind the header, which is in the buffer. */
static int seal_body(struct bnet_seal *seal, struct bnet_crypto_bytes first, struct bnet_crypto_bytes second)
{
	uint8_t *body = seal->buffer + BNET_WIRE_FRAME_HEADER, nonce[BNET_CIPHER_NONCE];
	int rc;

	if (!seal->cipher) {
		memcpy(body, first.bytes, first.size);
		if (second.size)
			memcpy(body + first.size, second.bytes, second.size);
		put_checksum(body + first.size + second.size,
			     checksum_of(seal->buffer, BNET_WIRE_FRAME_HEADER + first.size + second.size));
		return 0;
	}
	rc = next_nonce(seal, nonce);
	if (rc < 0)
		return rc;
	return bnet_cipher_seal(seal->cipher, nonce, (struct bnet_crypto_bytes){seal->buffer, BNET_WIRE_FRAME_HEADER},
				first, second, body);
}

int bnet_seal_frame(struct bnet_seal *seal, const uint8_t *head, size_t head_size, const void *payload, size_t size)
{
	const size_t body = head_size - BNET_WIRE_FRAME_HEADER + size, tag = tag_size(seal);
	struct bnet_wire_frame frame;
	int rc = reserve(seal, BNET_WIRE_FRAME_HEADER + body + tag);

	if (rc < 0)
		return rc;
	bnet_wire_frame_decode(head, &frame);
	frame.length = (uint32_t)(body + tag);
	bnet_wire_frame_encode(seal->buffer, &frame);
	rc = seal_body(seal,
		       (struct bnet_crypto_bytes){head + BNET_WIRE_FRAME_HEADER, head_size - BNET_WIRE_FRAME_HEADER},
		       (struct bnet_crypto_bytes){payload, size});
	seal->from = 0;
	seal->to = rc == 0 ? BNET_WIRE_FRAME_HEADER + body + tag : 0;
	return rc;
}

const uint8_t *bnet_seal_left(const struct bnet_seal *seal, size_t *size)
{
	*size = seal->to - seal->from;
	return seal->buffer + seal->from;
}

void bnet_seal_written(struct bnet_seal *seal, size_t size)
{
	seal->from += size;
}

/* ---- the receiver ---- */

int bnet_seal_collect(struct bnet_seal *seal, const uint8_t header[BNET_WIRE_FRAME_HEADER], uint8_t **to)
{
	struct bnet_wire_frame frame;
	int rc;

	bnet_wire_frame_decode(header, &frame);
	if (frame.length < tag_size(seal) || frame.length > BNET_SEAL_BODY_MAX)
		return -EBADMSG;
	rc = reserve(seal, BNET_WIRE_FRAME_HEADER + frame.length);
	if (rc < 0)
		return rc;
	memcpy(seal->buffer, header, BNET_WIRE_FRAME_HEADER);
	seal->to = BNET_WIRE_FRAME_HEADER + frame.length;
	*to = seal->buffer + BNET_WIRE_FRAME_HEADER;
	return 0;
}

const char *bnet_seal_kind_text(const struct bnet_seal *seal)
{
	return seal->cipher ? "does not verify (BAGUA_NET_ENCRYPT)" : "fails its checksum (BAGUA_NET_CHECKSUM)";
}

static int open_body(struct bnet_seal *seal, size_t body)
{
	uint8_t *tag = seal->buffer + BNET_WIRE_FRAME_HEADER + body, nonce[BNET_CIPHER_NONCE];
	uint8_t expected[BNET_SEAL_CHECKSUM_SIZE];
	int rc;

	if (!seal->cipher) {
		put_checksum(expected, checksum_of(seal->buffer, BNET_WIRE_FRAME_HEADER + body));
		return memcmp(tag, expected, sizeof(expected)) == 0 ? 0 : -EBADMSG;
	}
	rc = next_nonce(seal, nonce);
	if (rc < 0)
		return rc;
	return bnet_cipher_open(seal->cipher, nonce, (struct bnet_crypto_bytes){seal->buffer, BNET_WIRE_FRAME_HEADER},
				seal->buffer + BNET_WIRE_FRAME_HEADER, body);
}

int bnet_seal_open(struct bnet_seal *seal, const uint8_t **frame, size_t *size)
{
	const size_t body = seal->to - BNET_WIRE_FRAME_HEADER - tag_size(seal);
	struct bnet_wire_frame plain;
	int rc = open_body(seal, body);

	if (rc < 0)
		return rc;
	bnet_wire_frame_decode(seal->buffer, &plain);
	plain.length = (uint32_t)body;
	bnet_wire_frame_encode(seal->buffer, &plain);
	*frame = seal->buffer;
	*size = BNET_WIRE_FRAME_HEADER + body;
	return 0;
}
