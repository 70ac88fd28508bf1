/* SPDX-License-Identifier: MIT
 *
 * The quota of streams, and how processes of a host count each other.
 */
#include <errno.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/socket.h"
#include "check.h"
#include "device/presence.h"
#include "engine/engine.h"
#include "scaling/quota.h"
#include "transport/conn.h"

static void shares_add_up_to_the_quota(void)
{
	for (int processes = 1; processes <= 16; processes++)
		for (int connections = 1; connections <= 1024; connections++) {
			int share = bnet_quota_per_connection(processes, connections);

			check(share >= 1);
			check(share == 1 || share * connections * processes <= BNET_QUOTA);
			check((share + 1) * connections * processes > BNET_QUOTA);
		}
	/* Two connections may use as many streams as there are; 63 peers of each of eight ranks have one stream
	 * each. */
	check(bnet_quota_per_connection(1, 2) >= BNET_MAX_STREAMS);
	check_int(bnet_quota_per_connection(8, 63), 1);
	check_int(bnet_quota_per_connection(0, 0), BNET_QUOTA);
}

/* Streams that a connection has before it has moved are others' again once it has its share, or ends. */
static void early_streams_are_bounded(void)
{
	static struct bnet_conn one, other;

	check(bnet_quota_early(&one, BNET_QUOTA));
	check(!bnet_quota_early(&other, 1));
	bnet_quota_early_over(&one);
	bnet_quota_early_over(&one);
	check(bnet_quota_early(&other, BNET_QUOTA));
	check(!bnet_quota_early(&one, 1));
	bnet_quota_early_over(&other);
}

/* Far from any interface's number, so that processes outside this test are not counted. */
static struct bnet_device device(struct bnet_nic *nic)
{
	memset(nic, 0, sizeof(*nic));
	nic->ifindex = 1000000 + (int)getpid();
	return (struct bnet_device){.nmembers = 1, .members = {nic}};
}

static void processes_count_each_other(void)
{
	struct bnet_nic nic;
	struct bnet_device dev = device(&nic);
	int ready[2], go[2], own;
	char byte = 0;
	pid_t child;

	check_int(bnet_presence_count(&dev), 0);
	own = bnet_presence_announce(&dev);
	check(own >= 0);
	check_int(bnet_presence_count(&dev), 1);
	check(pipe(ready) == 0 && pipe(go) == 0);
	child = fork();
	if (child == 0) {
		close(go[1]);
		check(bnet_presence_announce(&dev) >= 0);
		check(write(ready[1], &byte, 1) == 1);
		check(read(go[0], &byte, 1) == 0);
		_exit(0);
	}
	check(read(ready[0], &byte, 1) == 1);
	check_int(bnet_presence_count(&dev), 2);
	close(go[1]);
	check(waitpid(child, NULL, 0) == child);
	check_int(bnet_presence_count(&dev), 1); /* nothing is left of it */
	bnet_socket_close(own);
	check_int(bnet_presence_count(&dev), 0);
}

static void the_number_of_names_is_bounded(void)
{
	struct bnet_nic nic;
	struct bnet_device dev = device(&nic);
	int fds[BNET_MAX_PRESENT];

	for (int i = 0; i < BNET_MAX_PRESENT; i++)
		check((fds[i] = bnet_presence_announce(&dev)) >= 0);
	check(bnet_presence_announce(&dev) < 0);
	check_int(bnet_presence_count(&dev), BNET_MAX_PRESENT);
	for (int i = 0; i < BNET_MAX_PRESENT; i++)
		bnet_socket_close(fds[i]);
}

/* A NIC, and what was merged from it and others. */
static void a_process_counts_once_on_a_nic(void)
{
	struct bnet_nic nic;
	struct bnet_device *devices = bnet_engine.devices.devices;

	devices[0] = devices[1] = device(&nic);
	bnet_engine.devices.ndevices = 2;
	bnet_quota_join(&devices[0]);
	bnet_quota_join(&devices[1]);
	check_int(bnet_presence_count(&devices[0]), 1);
	bnet_quota_end();
	check_int(bnet_presence_count(&devices[0]), 0);
}

static void names_are_looked_for_once(void)
{
	struct bnet_nic nic;
	struct bnet_device *dev = &bnet_engine.devices.devices[0];
	int fds[BNET_MAX_PRESENT];

	*dev = device(&nic);
	for (int i = 0; i < BNET_MAX_PRESENT; i++)
		check((fds[i] = bnet_presence_announce(dev)) >= 0);
	bnet_quota_join(dev);
	bnet_socket_close(fds[0]);
	bnet_quota_join(dev);
	check_int(bnet_presence_count(dev), BNET_MAX_PRESENT - 1);
	for (int i = 1; i < BNET_MAX_PRESENT; i++)
		bnet_socket_close(fds[i]);
	bnet_quota_end();
}

int main(void)
{
	shares_add_up_to_the_quota();
	early_streams_are_bounded();
	processes_count_each_other();
	the_number_of_names_is_bounded();
	a_process_counts_once_on_a_nic();
	names_are_looked_for_once();
	return 0;
}
