/* SPDX-License-Identifier: MIT
 *
 * Proofs of identity: both ends of a handshake show that they know the job's secret (base/secret.h), in the one round trip
 * that it takes anyway (docs/dev/protocol.md). A proof is a random number of the frame's sender and
 *
 *   HMAC-SHA-256(secret, kind ‖ the proof that is answered, or zeroes ‖ the frame, with zeroes in place of this MAC)
 *
 * HELLO's covers the token, which is the listener's random number, the connection and the stream's serial. WELCOME's
 * covers HELLO's, so that both are of one handshake. Under the engine's lock.
 */
#ifndef BNET_PROOF_H
#define BNET_PROOF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "wire/wire.h"

/* The kind of a frame, by which the proof of one is none of another. */
enum bnet_proof {
	BNET_PROOF_HELLO = 1,
	BNET_PROOF_WELCOME = 2,
	BNET_PROOF_QUESTION = 3,
	BNET_PROOF_ANSWER = 4,
};

/* The size of the proofs of this process's frames: 0 if it has no secret. */
uint8_t bnet_proof_size(void);
/* Fills in the proof of an encoded frame, which has the room for it. answered: that of the frame that this one answers;
 * NULL: it answers none. Does nothing without a secret. 0, or -errno. */
int bnet_proof_write(enum bnet_proof kind, uint8_t *frame, size_t size, const uint8_t *answered);
/* Does the frame's sender know this process's secret? */
bool bnet_proof_holds(enum bnet_proof kind, const uint8_t *frame, size_t size, const uint8_t *answered);

#endif
