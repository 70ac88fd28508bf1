/* SPDX-License-Identifier: MIT
 *
 * Why a socket does not reach the peer: for how long tries that fail so are repeated, and what the user is told. Pure
 * functions of an error, a negative errno. Any thread.
 */
#ifndef BNET_FAILURE_H
#define BNET_FAILURE_H

#include <stdbool.h>
#include <stdint.h>

/* Bytes of a reason. */
#define BNET_EXPLANATION 256

/* Why a try has failed, as far as it decides how long such failures are waited for. */
enum bnet_failure {
	BNET_FAILURE_NONE,
	BNET_FAILURE_REFUSED,
	BNET_FAILURE_RESET,
	BNET_FAILURE_NO_HOST,
	BNET_FAILURE_NO_ROUTE,
	BNET_FAILURE_NO_ANSWER,
	BNET_FAILURE_FINAL,
};

enum bnet_failure bnet_failure_of(int error);
/* There is no way to that address from where the socket is bound. */
bool bnet_failure_of_route(int error);
/* The peer's host, or something on the way, has answered with a reset. */
bool bnet_failure_refused(int error);
/* For how long tries that fail like the last one are repeated. local: the peer is on this machine; extra: the stream is
 * not the connection's first one. */
uint64_t bnet_failure_patience_ms(enum bnet_failure failure, bool local, bool extra);
/* The reason, and the user's next step. */
const char *bnet_failure_explain(int error, bool local, char text[BNET_EXPLANATION]);

#endif
