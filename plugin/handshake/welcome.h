/* SPDX-License-Identifier: MIT
 *
 * From HELLO to WELCOME, and from a question to its answer, at the listening side: who the sender of the first frame
 * is, what becomes of its socket, and what it is told (docs/dev/protocol.md). Under the engine's lock.
 */
#ifndef BNET_WELCOME_H
#define BNET_WELCOME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "wire/wire.h"

/* A socket on which this has arrived: one whole frame, HELLO or QUESTION. */
struct bnet_caller {
	int fd;
	const char *peer; /* its address, as text */
	const uint8_t *frame;
	size_t size;
	const uint8_t *challenge, *confirm; /* with a secret, of bnet_welcome: the proofs that followed HELLO */
};

/* With a secret: answers a HELLO whose proof holds with a CHALLENGE. A CONFIRM must follow, since a HELLO alone may
 * have been recorded, or be the first copy of two. NULL: *challenge is its proof; otherwise why the socket is to be
 * closed. */
const char *bnet_challenge(const struct bnet_caller *caller, uint8_t challenge[BNET_PROOF_SIZE]);
/* The socket is in no epoll set. NULL: it is a stream's now, or closed. Otherwise it is the caller's to close, and the
 * result tells why. */
const char *bnet_welcome(const struct bnet_caller *caller);
/* The socket is the caller's to close. NULL, or why nobody was answered about a connection. */
const char *bnet_answer_question(const struct bnet_caller *caller);

#endif
