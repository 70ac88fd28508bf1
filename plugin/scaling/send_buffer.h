/* SPDX-License-Identifier: MIT
 *
 * How large the send buffer of a stream is: it follows the path, and the messages where there is one stream. Under the
 * engine's lock.
 */
#ifndef BNET_SEND_BUFFER_H
#define BNET_SEND_BUFFER_H

#include "transport/conn.h"

/* Notes how large a sender's messages are. */
void bnet_send_buffer_weigh(struct bnet_conn *conn);
/* After each reading of the stream. */
void bnet_send_buffer_fit(struct bnet_conn *conn, struct bnet_stream *stream);

#endif
