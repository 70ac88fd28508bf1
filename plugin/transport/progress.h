/* SPDX-License-Identifier: MIT
 *
 * A pass: everything that is posted on a connection moves as far as its sockets allow. Never blocks.
 */
#ifndef BNET_PROGRESS_H
#define BNET_PROGRESS_H

#include <stdbool.h>

#include "transport/conn.h"

/* The owner only. True: something moved. */
bool bnet_progress(struct bnet_conn *conn);
/* The caller's thread: a pass, unless a worker makes them or another thread owns the connection. */
void bnet_progress_inline(struct bnet_conn *conn);
/* The same after a receive was posted, if data has been waiting for it: for data that has not arrived, a system call
 * would be wasted. */
void bnet_progress_posted_receive(struct bnet_conn *conn);
/* The caller's thread. 1: done, and the slot is free again; 0: not yet; -errno: the connection has failed. */
int bnet_progress_test(struct bnet_request *request, uint64_t *size);

#endif
