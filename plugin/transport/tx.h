/* SPDX-License-Identifier: MIT
 *
 * The sending direction: streams that can write claim slices of the posted messages, oldest first. The connection's
 * owner only.
 *
 * Where both ends take part in repairs, what was written is kept for a while (retention.h).
 */
#ifndef BNET_TX_H
#define BNET_TX_H

#include <stdbool.h>

#include "transport/conn.h"

/* One pass. True: something was written. */
bool bnet_tx_progress(struct bnet_conn *conn);
/* A stream of the connection has ended. If both ends take part in repairs, the control thread puts another one in its
 * place (control/repair.h); else the connection fails. error: -errno. */
void bnet_tx_break(struct bnet_conn *conn, struct bnet_stream *stream, int error);
/* … all those whose sockets the kernel has closed: one that sends nothing has seen no reset. */
void bnet_tx_break_closed(struct bnet_conn *conn);
/* Releases what was acknowledged. Is something left that was reported as sent, or is under way, and has not been?
 * Without repairs nobody knows: false. */
bool bnet_tx_owes(struct bnet_conn *conn);
/* Tells the kernel which streams have run dry: all of their bytes are on their way, and nothing follows. Only those
 * that bbr controls, on long paths. To be called several times in a round trip. Returns how many streams it looked at.
 *
 * bbr must not learn a path's rate from a stream that had nothing more to send. The kernel notes that, but only when
 * the application sends (tcp_rate_check_app_limited, since Linux 4.9), which it does not on a stream that has run dry.
 * If one of its last packets is lost, the retransmission is delivered alone: one packet in a round trip. Once bbr has
 * no younger estimate, it takes this for the path's rate, sends the next slice at 70 KB/s instead of 100 MB/s, and
 * needs seconds to find the rate again. */
int bnet_tx_note_dry(struct bnet_conn *conn);

#endif
