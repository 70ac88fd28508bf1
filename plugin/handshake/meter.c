/* SPDX-License-Identifier: MIT
 *
 * See meter.h.
 */
#include "handshake/meter.h"

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "common/clock.h"
#include "engine/engine.h"

/* How long after a question a receiver is looked at: a window is 64 round trips long at the most, and may begin with
 * some more. */
#define ASKED_US 3000000
#define ASKED_RTTS 100
#define MOST_RTT_US 200000
/* Looks further apart than this were none of the ticks between. */
#define MOST_GAP_US 100000
/* A window's worth of bytes may come at once in each round trip: only what is longer than so many is a pause. */
#define PAUSE_RTTS 2
/* A look takes some tens of µs, and a ms where a host has hundreds of interfaces: the next one comes so many times later
 * at the soonest. */
#define REST 50

static struct {
	uint64_t at_us, before_us; /* of the last look and of the one before; 0: there was none */
	uint64_t rests_until_us;
	struct bnet_traffic now[BNET_MAX_DEVICES], before[BNET_MAX_DEVICES];
} looks;

static void look(uint64_t now_us)
{
	const struct bnet_device_table *table = &bnet_engine.devices;
	const uint64_t began_us = bnet_thread_us();

	looks.before_us = looks.at_us;
	looks.at_us = now_us;
	memcpy(looks.before, looks.now, sizeof(looks.now));
	bnet_devices_traffic(table->devices, atomic_load(&table->ndevices), looks.now);
	looks.rests_until_us = now_us + (bnet_thread_us() - began_us) * REST;
}

/* All that have the same now_us share a look. */
struct bnet_meter_look bnet_meter_look(const struct bnet_device *dev, uint64_t now_us)
{
	if (looks.at_us != now_us && now_us >= looks.rests_until_us)
		look(now_us);
	return (struct bnet_meter_look){.at_us = looks.at_us, .traffic = looks.now[bnet_device_number(dev)]};
}

/* Since the look before this one. {0}: not known. */
static struct bnet_metered since(const struct bnet_device *dev, uint64_t now_us)
{
	const struct bnet_meter_look now = bnet_meter_look(dev, now_us);
	const uint64_t before = looks.before[bnet_device_number(dev)].received;

	if (now.at_us != now_us || !looks.before_us || now_us - looks.before_us > MOST_GAP_US ||
	    bnet_engine.idle_until_us > looks.before_us || !before || now.traffic.received < before)
		return (struct bnet_metered){0};
	return (struct bnet_metered){.moved_us = now_us - looks.before_us, .received = now.traffic.received - before};
}

static void add(struct bnet_metered *sum, const struct bnet_metered *more)
{
	sum->moved_us += more->moved_us;
	sum->received += more->received;
}

struct bnet_metered bnet_meter_read(struct bnet_conn *conn, uint32_t rtt_us)
{
	struct bnet_meter *meter = &conn->meter;

	if (bnet_list_empty(&meter->node)) {
		bnet_list_add(&bnet_engine.metered, &meter->node);
		meter->moves = bnet_conn_moves(&conn->counts);
		meter->paused = true; /* as far as anybody has looked */
	}
	meter->rtt_us = rtt_us < MOST_RTT_US ? rtt_us : MOST_RTT_US;
	meter->until_us = bnet_now_us() + ASKED_US + (uint64_t)meter->rtt_us * ASKED_RTTS;
	return meter->seen;
}

/* Who polls counts a call, and then that it was in vain: a look between the two sees one more. */
static bool has_moved(struct bnet_conn *conn)
{
	const uint64_t moves = bnet_conn_moves(&conn->counts), before = conn->meter.moves;

	conn->meter.moves = moves;
	return moves > before + 1;
}

/* A pause does not count, nor the look in which it ends, of which a part is the pause's. */
static void meter(struct bnet_conn *conn, uint64_t now_us)
{
	struct bnet_meter *meter = &conn->meter;
	const struct bnet_metered now = since(conn->dev, now_us);
	const bool moved = has_moved(conn);

	add(&meter->held, &now);
	meter->paused |= now.moved_us == 0 || (!moved && meter->held.moved_us > (uint64_t)meter->rtt_us * PAUSE_RTTS);
	if (moved) {
		if (!meter->paused)
			add(&meter->seen, &meter->held);
		meter->held = (struct bnet_metered){0};
		meter->paused = false;
	}
	if (now_us >= meter->until_us)
		bnet_list_remove(&meter->node);
}

void bnet_meter_tick(uint64_t now_us)
{
	bnet_list_each(node, &bnet_engine.metered)
		meter(bnet_entry(bnet_entry(node, struct bnet_meter, node), struct bnet_conn, meter), now_us);
}
