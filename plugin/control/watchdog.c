/* SPDX-License-Identifier: MIT
 *
 * See watchdog.h.
 */
#include "control/watchdog.h"

#include <stddef.h>
#include <stdio.h>

#include "base/log.h"
#include "base/tcp_info.h"
#include "common/clock.h"
#include "engine/engine.h"
#include "transport/conn.h"

/* Active connections that are looked at on each tick; of more, all of them on one of several ticks. */
#define SAMPLED 256
/* Ranks of a job wait for each other for a second or two in each step, and for a minute where one writes a checkpoint.
 * So long waits one that hangs, for which torch ends a job after ten minutes. */
#define SAID_US UINT64_C(20000000)
#define SAID_VISIBLY_US UINT64_C(300000000)
/* After one line: a job that waits in each of its steps must not fill the log. */
#define PAUSE_US UINT64_C(600000000)

/* ---- how long ---- */

void bnet_watchdog_begin(struct bnet_conn *conn, uint64_t now_us)
{
	conn->seen.worked = bnet_conn_has_work(conn);
	conn->seen.sampled_us = now_us;
	conn->seen.still_us = 0;
}

static void sample(struct bnet_conn *conn, uint64_t now_us)
{
	struct bnet_seen *seen = &conn->seen;
	const uint64_t elapsed = now_us - seen->sampled_us, moves = bnet_conn_moves(&conn->counts);
	const bool worked = seen->worked;

	seen->worked = bnet_conn_has_work(conn);
	seen->sampled_us = now_us;
	seen->still_us = worked && seen->worked && moves == seen->moves ? seen->still_us + elapsed : 0;
	seen->moves = moves;
	/* What began or ended in between did so in the middle, on average: bursts may be shorter than a tick. */
	seen->posted_us += elapsed * ((unsigned)worked + (unsigned)seen->worked) / 2;
}

void bnet_watchdog_sample(uint64_t now_us)
{
	static unsigned tick;
	const unsigned every = 1 + (unsigned)bnet_engine.active.count / SAMPLED;

	if (++tick % every)
		return;
	bnet_list_each(node, &bnet_engine.active.items)
		sample(bnet_entry(bnet_entry(node, struct bnet_work_item, node), struct bnet_conn, work), now_us);
}

/* ---- and why ---- */

struct silence {
	bool heard; /* something has come from the peer's host meanwhile */
	bool asked; /* … which owes an answer */
};

static struct silence listen_to(const struct bnet_conn *conn)
{
	const uint64_t half_ms = conn->seen.still_us / 2000;
	struct silence silence = {false, false};

	for (int i = 0; i < conn->nstreams; i++) {
		struct bnet_tcp_info info;

		if (!bnet_tcp_info_read(conn->streams[i]->fd, &info, offsetof(struct bnet_tcp_info, pmtu)))
			continue;
		silence.heard |= info.last_ack_received < half_ms || info.last_data_received < half_ms;
		silence.asked |= info.unacked || info.probes || info.retransmits;
	}
	return silence;
}

static const char *reason_of(const struct bnet_conn *conn)
{
	const struct silence silence = listen_to(conn);

	if (!bnet_list_empty(&conn->broken) || atomic_load(&conn->alone_us))
		return "its streams were reset, and none has taken their place";
	if (silence.asked && !silence.heard)
		return "that host answers nothing: it is down, or the network between";
	if (!conn->sender)
		return "the rank there sends nothing: it computes, is stopped, or waits for another rank";
	return "the rank there takes nothing: it is stopped, or has not posted its receives";
}

struct stillness {
	const struct bnet_conn *worst; /* NULL: nothing is still */
	uint64_t longest_us;
	unsigned count;
};

static struct stillness find_still(void)
{
	struct stillness found = {NULL, 0, 0};

	bnet_list_each(node, &bnet_engine.active.items) {
		const struct bnet_conn *conn =
			bnet_entry(bnet_entry(node, struct bnet_work_item, node), struct bnet_conn, work);

		if (!bnet_conn_is_workable(conn) || conn->setup.closed || conn->seen.still_us < SAID_US)
			continue;
		found.count++;
		if (conn->seen.still_us > found.longest_us)
			found.longest_us = conn->seen.still_us;
		/* What a sender waits for says more. */
		if (!found.worst || (conn->sender && !found.worst->sender) ||
		    (conn->sender == found.worst->sender && conn->seen.still_us > found.worst->seen.still_us))
			found.worst = conn;
	}
	return found;
}

/* Whoever sends and is not heard may need help soon; to wait for what another rank computes is usual. */
static void say(const struct stillness *found)
{
	const struct bnet_conn *conn = found->worst;
	char others[64] = "", text[512];

	if (found->count > 1)
		snprintf(others, sizeof(others), "; nor does anything on %u other connections", found->count - 1);
	snprintf(text, sizeof(text),
		 "nothing has moved for %llu s on the connection %s %s (%s that are outstanding: %u): %s%s. `bagua-net "
		 "explain` on that host says more",
		 (unsigned long long)conn->seen.still_us / 1000000, conn->sender ? "to" : "from", conn->peer,
		 conn->sender ? "sends" : "receives", bnet_conn_outstanding(conn), reason_of(conn), others);
	if (found->longest_us >= SAID_VISIBLY_US)
		bnet_warn_visibly("NET/BaguaNet: %s", text);
	else if (conn->sender)
		bnet_log(NCCL_LOG_WARN, BNET_WAITS, BNET_FILE, __LINE__, "NET/BaguaNet: %s", text);
	else
		bnet_info(NCCL_NET, "NET/BaguaNet: %s", text);
}

void bnet_watchdog_look(void)
{
	static uint64_t next_us, said_us; /* how long it must be next time; when the last line came */
	const struct stillness found = find_still();
	const uint64_t now_us = bnet_now_us();

	if (found.longest_us < next_us / 2)
		next_us = SAID_US; /* what the last line was of is over */
	if (!found.worst || found.longest_us < next_us ||
	    (next_us == SAID_US && said_us && now_us - said_us < PAUSE_US && found.longest_us < SAID_VISIBLY_US))
		return;
	say(&found);
	said_us = now_us;
	next_us = 2 * found.longest_us;
}
