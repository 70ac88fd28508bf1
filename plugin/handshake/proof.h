/* SPDX-License-Identifier: MIT
 *
 * Proofs of identity: both ends of a handshake show that they know the job's secret (base/secret.h and
 * docs/dev/protocol.md). A proof is a random number of the frame's sender and
 *
 *   HMAC-SHA-256(secret, kind ‖ the proof that is answered, or zeroes ‖ the frame, with zeroes in place of this MAC)
 *
 * HELLO, CHALLENGE, CONFIRM and WELCOME each answer the one before, so that all are of one handshake, of which each end
 * has drawn a random number. Under the engine's lock.
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
	BNET_PROOF_CHALLENGE = 5,
	BNET_PROOF_CONFIRM = 6,
};

/* In words, for a rank that is not to blame: no check could be made. */
#define BNET_NO_PROOF "this process ends, or libcrypto finds no memory, or no random numbers"

/* The size of the proofs of this process's frames: 0 if it has no secret. */
uint8_t bnet_proof_size(void);
/* Draws the random number of a proof. Does nothing without a secret, as the next one. 0, or -errno. */
int bnet_proof_draw(uint8_t proof[BNET_PROOF_NONCE]);
/* Fills in the MAC of an encoded frame, which has the proof's random number and the room for the MAC. answered: the
 * proof of the frame that this one answers; NULL: it answers none. 0, or -errno. */
int bnet_proof_write(enum bnet_proof kind, uint8_t *frame, size_t size, const uint8_t *answered);
/* Checks that the frame's sender knows this process's secret. 0: it does; -EACCES: it does not, or this process has
 * none; another -errno: the check could not be made, as when the process exits. */
int bnet_proof_check(enum bnet_proof kind, const uint8_t *frame, size_t size, const uint8_t *answered);

#endif
