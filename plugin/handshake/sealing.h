/* SPDX-License-Identifier: MIT
 *
 * Whether streams are encrypted, or have checksums, which both ends must want, and the seal of a stream from what its
 * handshake has (transport/seal.h). Under the engine's lock.
 */
#ifndef BNET_SEALING_H
#define BNET_SEALING_H

#include <stdbool.h>
#include <stdint.h>

#include "transport/conn.h"
#include "transport/seal.h"

/* Those of HELLO and WELCOME that tell of this end's secret, encryption and checksums. */
uint32_t bnet_sealing_features(void);
/* Do both ends encrypt, or want checksums, or neither? */
bool bnet_sealing_agrees(uint32_t peer_features);
/* Why they do not, for a person. */
const char *bnet_sealing_mismatch(uint32_t peer_features);

struct bnet_sealing {
	const struct bnet_conn *conn;
	uint32_t serial;                  /* the stream's */
	uint32_t peer_features;           /* which agree */
	const uint8_t *hello, *challenge; /* the proofs; with a secret */
};
/* For a person: bnet_sealing_start has returned -ENOPKG. */
#define BNET_SEALING_NO_CIPHER                                                                                  \
	"one end's processor has no instructions for AES, and this host's OpenSSL allows no ChaCha20-Poly1305 " \
	"(openssl.cnf, FIPS)"
/* *out: the seal, or NULL where neither end wants one. -ENOMEM; -ENOPKG. */
int bnet_sealing_start(const struct bnet_sealing *sealing, struct bnet_seal **out);

#endif
