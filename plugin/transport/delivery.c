/* SPDX-License-Identifier: MIT
 *
 * See delivery.h.
 */
#include "transport/delivery.h"

#include "base/socket.h"
#include "base/tcp_info.h"

/* Where the peer's kernel sends nothing by itself: more than one answer must be missing, since packets get lost. */
#define MIN_UNANSWERED 2
/* Where its probes arrive: one answer, for longer than a round trip. A proxy on the way that ends TCP passes no probes
 * on, and the window's own are up to two minutes apart: one that was lost would look like silence until the next. */
#define MIN_UNANSWERED_LOOKS 2

static bool read_counts(int fd, struct bnet_delivery_reading *reading)
{
	struct bnet_tcp_info info;

	if (!bnet_tcp_info_read(fd, &info, offsetof(struct bnet_tcp_info, notsent_bytes)))
		return false;
	*reading = (struct bnet_delivery_reading){
		.ended = info.state == TCP_CLOSE,
		.acked = info.bytes_acked,
		.arrived = info.segs_in,
		.unanswered = (uint32_t)info.retransmits + info.probes,
		.backoff = info.backoff,
	};
	return true;
}

void bnet_delivery_start(struct bnet_delivery *delivery, int fd)
{
	struct bnet_delivery_reading reading;

	/* The peer has read the handshake, so neither count is zero. */
	delivery->counted = read_counts(fd, &reading) && reading.acked && reading.arrived;
	if (!delivery->counted)
		return;
	delivery->handshake = reading.acked;
	delivery->arrived = reading.arrived;
}

static uint64_t missing(const struct bnet_delivery *delivery, uint64_t acked, uint64_t written)
{
	uint64_t end = delivery->handshake + written;

	/* A socket that was reset may count from the beginning. */
	return acked < end ? end - acked : 0;
}

uint64_t bnet_delivery_missing(const struct bnet_delivery *delivery, int fd)
{
	uint64_t written = atomic_load_explicit(&delivery->written, memory_order_relaxed);
	struct bnet_delivery_reading reading;

	if (!delivery->counted || !read_counts(fd, &reading))
		return bnet_socket_all_acknowledged(fd) ? 0 : 1;
	return missing(delivery, reading.acked, written);
}

/* The first look that finds bytes missing may come right after they were written. */
static uint32_t looks_of_silence(const struct bnet_delivery *delivery)
{
	return delivery->silent ? delivery->silent - 1 : 0;
}

static bool is_doubtful(const struct bnet_delivery *delivery, const struct bnet_delivery_reading *reading,
			struct bnet_silence_limit limit)
{
	uint32_t looks = looks_of_silence(delivery), times = looks / limit.doubt;

	return looks && looks % limit.doubt == 0 && (times & (times - 1)) == 0 && reading->unanswered >= MIN_UNANSWERED;
}

static bool misses_answers(const struct bnet_delivery *delivery, const struct bnet_delivery_reading *reading,
			   struct bnet_silence_limit limit)
{
	return limit.peer_probes && delivery->probed ? delivery->unanswered >= MIN_UNANSWERED_LOOKS
						     : reading->unanswered >= MIN_UNANSWERED;
}

/* While a window is shut, what arrives is either the answer to a probe of it, which raises the backoff, or the peer's
 * own probe. */
static bool is_unasked(const struct bnet_delivery *delivery, const struct bnet_delivery_reading *reading)
{
	return reading->arrived != delivery->arrived && !reading->unanswered && !delivery->asked && reading->backoff &&
	       reading->backoff == delivery->backoff && reading->acked == delivery->acked;
}

static void keep(struct bnet_delivery *delivery, const struct bnet_delivery_reading *reading)
{
	delivery->arrived = reading->arrived;
	delivery->acked = reading->acked;
	delivery->backoff = reading->backoff;
	delivery->asked = reading->unanswered > 0;
}

enum bnet_delivery_state bnet_delivery_judge(struct bnet_delivery *delivery,
					     const struct bnet_delivery_reading *reading, uint64_t written,
					     struct bnet_silence_limit limit)
{
	bool heard = reading->arrived != delivery->arrived;

	delivery->probed |= is_unasked(delivery, reading);
	keep(delivery, reading);
	if (missing(delivery, reading->acked, written) == 0) {
		delivery->backoff = 0; /* no look until more is written */
		delivery->settled = written;
		delivery->silent = 0;
		return BNET_DELIVERY_DONE;
	}
	if (reading->ended)
		return BNET_DELIVERY_LOST;
	delivery->silent = heard ? 0 : delivery->silent + 1;
	delivery->unanswered = heard || !reading->unanswered ? 0 : delivery->unanswered + 1;
	if (limit.looks && looks_of_silence(delivery) >= limit.looks && misses_answers(delivery, reading, limit))
		return BNET_DELIVERY_SILENT;
	if (limit.doubt && is_doubtful(delivery, reading, limit))
		return BNET_DELIVERY_DOUBTFUL;
	return BNET_DELIVERY_OPEN;
}

enum bnet_delivery_state bnet_delivery_look(struct bnet_delivery *delivery, int fd, struct bnet_silence_limit limit)
{
	uint64_t written = atomic_load_explicit(&delivery->written, memory_order_relaxed);
	struct bnet_delivery_reading reading;

	if (written == delivery->settled)
		return BNET_DELIVERY_DONE;
	if (!delivery->counted || !read_counts(fd, &reading))
		return bnet_socket_all_acknowledged(fd) ? BNET_DELIVERY_DONE : BNET_DELIVERY_OPEN;
	return bnet_delivery_judge(delivery, &reading, written, limit);
}
