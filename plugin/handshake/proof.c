/* SPDX-License-Identifier: MIT
 *
 * See proof.h.
 */
#include "handshake/proof.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "base/crypto.h"
#include "base/secret.h"

#define LABEL "bagua-net proof 1"
#define BEFORE_FRAME (sizeof(LABEL) + 1 + BNET_PROOF_SIZE)

static_assert(BNET_PROOF_SIZE == BNET_PROOF_NONCE + BNET_SHA256_SIZE, "a proof is a random number and a MAC");

static size_t place_of(enum bnet_proof kind)
{
	switch (kind) {
	case BNET_PROOF_HELLO:
		return BNET_WIRE_HELLO_PROOF;
	case BNET_PROOF_WELCOME:
		return BNET_WIRE_WELCOME_PROOF;
	case BNET_PROOF_QUESTION:
		return BNET_WIRE_QUESTION_PROOF;
	case BNET_PROOF_ANSWER:
		return BNET_WIRE_ANSWER_PROOF;
	case BNET_PROOF_CHALLENGE:
	case BNET_PROOF_CONFIRM:
		return BNET_WIRE_PROOF_PROOF;
	}
	return 0;
}

uint8_t bnet_proof_size(void)
{
	return bnet_secret_is_set() ? BNET_PROOF_SIZE : 0;
}

static int mac_of(enum bnet_proof kind, const uint8_t *frame, size_t size, const uint8_t *answered,
		  uint8_t mac[BNET_SHA256_SIZE])
{
	static const uint8_t none[BNET_PROOF_SIZE];
	const struct bnet_secret *secret = bnet_secret();
	uint8_t text[BEFORE_FRAME + BNET_WIRE_HANDSHAKE_MAX];
	uint8_t *p = text;

	memcpy(p, LABEL, sizeof(LABEL));
	p += sizeof(LABEL);
	*p++ = (uint8_t)kind;
	memcpy(p, answered ? answered : none, BNET_PROOF_SIZE);
	p += BNET_PROOF_SIZE;
	memcpy(p, frame, size);
	memset(p + place_of(kind) + BNET_PROOF_NONCE, 0, BNET_SHA256_SIZE);
	return bnet_crypto_hmac(secret->bytes, secret->size, text, BEFORE_FRAME + size, mac);
}

static bool has_room(enum bnet_proof kind, size_t size)
{
	return size >= place_of(kind) + BNET_PROOF_SIZE && size <= BNET_WIRE_HANDSHAKE_MAX;
}

int bnet_proof_draw(uint8_t proof[BNET_PROOF_NONCE])
{
	return bnet_secret_is_set() ? bnet_crypto_random(proof, BNET_PROOF_NONCE) : 0;
}

int bnet_proof_write(enum bnet_proof kind, uint8_t *frame, size_t size, const uint8_t *answered)
{
	if (!bnet_secret_is_set())
		return 0;
	if (!has_room(kind, size))
		return -EMSGSIZE;
	return mac_of(kind, frame, size, answered, frame + place_of(kind) + BNET_PROOF_NONCE);
}

int bnet_proof_check(enum bnet_proof kind, const uint8_t *frame, size_t size, const uint8_t *answered)
{
	uint8_t mac[BNET_SHA256_SIZE];
	int rc;

	if (!bnet_secret_is_set() || !has_room(kind, size))
		return -EACCES;
	rc = mac_of(kind, frame, size, answered, mac);
	if (rc < 0)
		return rc;
	return bnet_crypto_equal(frame + place_of(kind) + BNET_PROOF_NONCE, mac, sizeof(mac)) ? 0 : -EACCES;
}
