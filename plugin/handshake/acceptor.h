/* SPDX-License-Identifier: MIT
 *
 * Inbound connections, which come by the listeners (listener.h), are accepted and have sent neither HELLO nor QUESTION;
 * what becomes of one that has is in welcome.h. One that sends anything else, or nothing for ten seconds, is dropped
 * with a line in the log; it costs one descriptor and 1,300 bytes. At most 1024 are kept, and at most an eighth of the
 * process's descriptors. The control thread, or under the engine's lock.
 */
#ifndef BNET_ACCEPTOR_H
#define BNET_ACCEPTOR_H

#include <stdint.h>

#include "engine/engine.h"
#include "handshake/listen.h"

/* A listener is readable: accepts some connections. */
void bnet_acceptor_ready(int nic);
/* For a caller that waits for one, so that it need not wait for the control thread as well: accepts some. Callers that
 * look all the time do so instead of the control thread, until none has looked for BNET_TICK_MS. */
void bnet_acceptor_look(const struct bnet_listen *listen);
/* An inbound connection is readable: reads its HELLO or QUESTION, no further, and answers it. */
void bnet_acceptor_hello(struct bnet_watch *watch);
/* why: the line in the log; NULL: none. */
void bnet_acceptor_drop(struct bnet_watch *watch, const char *why);
void bnet_acceptor_tick(uint64_t now);

#endif
