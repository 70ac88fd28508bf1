/* SPDX-License-Identifier: MIT
 *
 * What a receiver's host counts for its peer: what the device receives, for whomever, while the connection's bytes
 * arrive, and nothing of what others receive in pauses. Both ends are of this process; the device is the loopback
 * interface, whose counters are the kernel's. The clock of the thread's processor time is interposed.
 */
#include <netinet/in.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "bagua_net.h"
#include "common/clock.h"
#include "handshake/meter.h"
#include "oneself.h"

#define TICK_US 20000
#define OTHERS 20000 /* bytes of somebody else, in a tick */

static struct bnet_client client;
static uint64_t now_us;
static uint32_t rtt_us; /* as the peer says */

/* What a look costs here, or under an emulator, must not decide when the next one is due. */
static uint64_t look_us;

int clock_gettime(clockid_t clock, struct timespec *now)
{
	static _Thread_local uint64_t used_us;

	if (clock != CLOCK_THREAD_CPUTIME_ID)
		return (int)syscall(SYS_clock_gettime, clock, now);
	used_us += look_us;
	*now = (struct timespec){.tv_sec = (time_t)(used_us / 1000000), .tv_nsec = (long)(used_us % 1000000) * 1000};
	return 0;
}

static void others_receive(void)
{
	static const char bytes[OTHERS];
	struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t size = sizeof(to);
	int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	check(fd >= 0);
	check_int(bind(fd, (struct sockaddr *)&to, size), 0);
	check_int(getsockname(fd, (struct sockaddr *)&to, &size), 0);
	check_int(sendto(fd, bytes, sizeof(bytes), 0, (struct sockaddr *)&to, size), sizeof(bytes));
	close(fd);
}

/* How many ticks counted. */
static uint64_t tick(struct bnet_conn *conn, bool arrives, uint64_t us)
{
	const struct bnet_metered before = bnet_meter_read(conn, rtt_us);
	struct bnet_metered after;
	uint64_t ticks;

	if (arrives)
		atomic_fetch_add(&conn->counts.receive_calls, 2);
	others_receive();
	bnet_meter_tick(now_us += us);
	after = bnet_meter_read(conn, rtt_us);
	ticks = (after.moved_us - before.moved_us) / TICK_US;
	check_int(after.moved_us - before.moved_us, ticks * TICK_US);
	check(ticks ? after.received - before.received >= ticks * OTHERS : after.received == before.received);
	return ticks;
}

static void what_comes_in_a_pause_does_not_count(struct bnet_conn *conn)
{
	check_int(tick(conn, true, TICK_US), 0); /* since when is not known */
	check_int(tick(conn, true, TICK_US), 1);
	check_int(tick(conn, true, TICK_US), 1);
	check_int(tick(conn, false, TICK_US), 0);
	check_int(tick(conn, true, TICK_US), 0); /* a part of it was the pause's */
	check_int(tick(conn, true, TICK_US), 1);
	check_int(tick(conn, true, 50 * TICK_US), 0); /* nobody has looked meanwhile */
	check_int(tick(conn, true, TICK_US), 1);
}

/* Who polls counts a call, and then that it was in vain. */
static void a_call_in_vain_is_no_arrival(struct bnet_conn *conn)
{
	check_int(tick(conn, true, TICK_US), 1);
	atomic_fetch_add(&conn->counts.receive_calls, 1);
	check_int(tick(conn, false, TICK_US), 0);
	atomic_fetch_add(&conn->counts.receive_again, 1);
	check_int(tick(conn, false, TICK_US), 0);
	check_int(tick(conn, true, TICK_US), 0);
}

/* The control thread has slept, and nobody has looked for a pause. */
static void idle_time_does_not_count(struct bnet_conn *conn)
{
	check_int(tick(conn, true, TICK_US), 1);
	bnet_engine.idle_until_us = now_us + TICK_US / 2;
	check_int(tick(conn, true, TICK_US), 0);
	check_int(tick(conn, true, TICK_US), 1);
}

/* On a long path bytes may come at once in each round trip. */
static void a_round_trip_is_no_pause(struct bnet_conn *conn)
{
	rtt_us = TICK_US;
	check_int(tick(conn, false, TICK_US), 0);
	check_int(tick(conn, false, TICK_US), 0);
	check_int(tick(conn, true, TICK_US), 3);
	for (int i = 0; i < 3; i++)
		check_int(tick(conn, false, TICK_US), 0);
	check_int(tick(conn, true, TICK_US), 0);
	check_int(tick(conn, true, TICK_US), 1);
}

/* The counters are not known for a moment. */
static void counters_that_come_back_are_no_traffic(struct bnet_conn *conn)
{
	struct bnet_device *dev = &bnet_engine.devices.devices[0];
	const struct bnet_nic *nic = dev->members[0];
	struct bnet_nic none = *nic;

	snprintf(none.name, sizeof(none.name), "none");
	dev->members[0] = &none;
	check_int(tick(conn, true, TICK_US), 0);
	dev->members[0] = nic;
	check_int(tick(conn, true, TICK_US), 0);
	check_int(tick(conn, true, TICK_US), 1);
}

/* As on a host with hundreds of interfaces. */
static void a_costly_look_is_rare(struct bnet_conn *conn)
{
	look_us = TICK_US / 40; /* the next one is due after 50 times as long */
	check_int(tick(conn, true, TICK_US), 1);
	check_int(tick(conn, true, TICK_US), 0);
	look_us = 0;
	check_int(tick(conn, true, TICK_US), 2); /* since the look before that one */
	check_int(tick(conn, true, TICK_US), 1);
}

/* Nobody asks any more. */
static void it_ends(struct bnet_conn *conn)
{
	check(!bnet_list_empty(&bnet_engine.metered));
	bnet_meter_tick(now_us += 3600000000);
	check(bnet_list_empty(&bnet_engine.metered));
	check(bnet_meter_read(conn, rtt_us).moved_us > 0);
}

int main(void)
{
	struct oneself ends;

	setenv("NCCL_SOCKET_IFNAME", "lo", 1);
	setenv("NCCL_SOCKET_FAMILY", "AF_INET", 1);
	check_int(bnet_client_init(&client, bnet_net_table(12), 12, print_warnings), ncclSuccess);
	ends = connect_to_oneself(&client);
	bnet_engine_lock(); /* the control thread has its own ticks */
	now_us = bnet_now_us() + 1000000;
	what_comes_in_a_pause_does_not_count(ends.recv);
	a_call_in_vain_is_no_arrival(ends.recv);
	idle_time_does_not_count(ends.recv);
	a_round_trip_is_no_pause(ends.recv);
	counters_that_come_back_are_no_traffic(ends.recv);
	a_costly_look_is_rare(ends.recv);
	it_ends(ends.recv);
	bnet_engine_unlock();
	close_to_oneself(&client, ends);
	bnet_engine_lock();
	check(bnet_list_empty(&bnet_engine.metered));
	bnet_engine_unlock();
	check_int(bnet_client_finalize(&client), ncclSuccess);
	return 0;
}
