/* SPDX-License-Identifier: MIT
 *
 * Whether the peer's kernel has what a sender's stream was given. A send may be done before its bytes have arrived.
 * Whether they do is seen here, also after the last request is done.
 * The owner counts what it writes; everything else is the control thread's.
 */
#ifndef BNET_DELIVERY_H
#define BNET_DELIVERY_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* The interval of looks. */
#define BNET_DELIVERY_LOOK_MS 1000

struct bnet_delivery {
	_Atomic uint64_t written; /* bytes since the handshake */
	bool counted;             /* the kernel counts acknowledged bytes and segments; some emulated ones do not */
	uint64_t handshake;       /* bytes acknowledged before */
	uint64_t settled;         /* of those written, bytes that are known to be acknowledged */
	uint32_t arrived;         /* segments from the peer until the last look */
	uint32_t silent;          /* looks in a row that found bytes missing, and no segment since the one before */
	uint32_t unanswered;      /* … and in which the kernel waited for an answer */
	uint64_t acked;           /* at the last look that found bytes missing, as the following two */
	uint32_t backoff;
	bool asked;  /* the kernel waited for an answer */
	bool probed; /* segments came that answered nothing: the peer's own keepalive probes reach this host */
};

/* The kernel's counts of a socket. */
struct bnet_delivery_reading {
	bool ended; /* the peer has reset the connection, or the kernel has given it up */
	uint64_t acked;
	uint32_t arrived;
	uint32_t unanswered; /* retransmissions and window probes in a row */
	uint32_t backoff;    /* of the probes of a shut window, which grows with each, up to net.ipv4.tcp_retries2 */
};

enum bnet_delivery_state {
	BNET_DELIVERY_DONE,     /* everything is acknowledged */
	BNET_DELIVERY_OPEN,     /* not yet */
	BNET_DELIVERY_DOUBTFUL, /* not yet, nothing has come for some time, and now is the time to try another stream */
	BNET_DELIVERY_SILENT,   /* not yet, and the peer's host has sent nothing for too long */
	BNET_DELIVERY_LOST,     /* not, and the stream has ended */
};

/* How long the peer's host may be silent. */
struct bnet_silence_limit {
	uint32_t looks;   /* 0: for ever */
	uint32_t doubt;   /* after so many, and each time after twice as many, the stream is doubtful */
	bool peer_probes; /* its kernel sends keepalive probes more often than that */
};

/* After the handshake and before the first write. */
void bnet_delivery_start(struct bnet_delivery *delivery, int fd);
/* Bytes that are not acknowledged. */
uint64_t bnet_delivery_missing(const struct bnet_delivery *delivery, int fd);
/* At regular intervals. */
enum bnet_delivery_state bnet_delivery_look(struct bnet_delivery *delivery, int fd, struct bnet_silence_limit limit);

/* What bnet_delivery_look concludes from a reading; written: as counted before it. Pure. */
enum bnet_delivery_state bnet_delivery_judge(struct bnet_delivery *delivery,
					     const struct bnet_delivery_reading *reading, uint64_t written,
					     struct bnet_silence_limit limit);

/* The owner has given the kernel so many bytes more. */
static inline void bnet_delivery_add(struct bnet_delivery *delivery, uint64_t bytes)
{
	uint64_t written = atomic_load_explicit(&delivery->written, memory_order_relaxed);

	atomic_store_explicit(&delivery->written, written + bytes, memory_order_relaxed);
}

#endif
