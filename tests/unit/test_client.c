/* SPDX-License-Identifier: MIT
 *
 * bnet_client over every table of the library: the same calls give the same results with every version.
 */
#include <limits.h>
#include <stdbool.h>
#include <stdlib.h>
#include <unistd.h>

#include "bagua_net.h"
#include "oneself.h"

#define DEADLINE_S 250

static void refuses_unknown_tables(void)
{
	struct bnet_client client;

	check_int(bnet_client_init(&client, bnet_net_table(12), 3, print_warnings), ncclInvalidArgument);
	check_int(bnet_client_init(&client, bnet_net_table(12), 13, print_warnings), ncclInvalidArgument);
	check_int(bnet_client_init(&client, NULL, 12, print_warnings), ncclInvalidArgument);
}

static void check_properties(const struct bnet_client *client)
{
	const int version = client->version;
	ncclNetProperties_v12_t props;
	int ndev = -1;

	check_int(bnet_client_devices(client, &ndev), ncclSuccess);
	check(ndev >= 1);
	memset(&props, 0x55, sizeof(props)); /* must be overwritten */
	check_int(bnet_client_properties(client, 0, &props), ncclSuccess);
	check_str(props.name, "lo");
	check_int(props.ptrSupport, NCCL_PTR_HOST);
	check(props.speed > 0 && props.speed < 10000000);
	check(props.maxComms > 0);
	check_int(props.maxRecvs, version >= 5 ? 1 : 0);
	check_int(props.netDeviceType, NCCL_NET_DEVICE_HOST);
	check_int(props.vProps.ndevs, version >= 9 ? 1 : 0);
	check_int(props.vProps.devs[0], 0);
	check(version >= 9 ? props.maxP2pBytes > 0 && props.maxP2pBytes <= NCCL_MAX_NET_SIZE_BYTES
			   : props.maxP2pBytes == 0);
	check_int(props.railId, version >= 12 ? NCCL_NET_ID_UNDEF : 0);
	check_int(props.planeId, version >= 12 ? NCCL_NET_ID_UNDEF : 0);
}

/* Tests both until both are done. expected: both sizes; -1: ask for none. */
static void finish(const struct bnet_client *client, void *send, void *recv, int expected)
{
	int sent = 0, received = 0, send_size = -1, recv_size = -1;

	while (!sent || !received) {
		if (!sent)
			check_int(bnet_client_test(client, send, &sent, expected < 0 ? NULL : &send_size), ncclSuccess);
		if (!received)
			check_int(bnet_client_test(client, recv, &received, expected < 0 ? NULL : &recv_size),
				  ncclSuccess);
	}
	if (expected >= 0) {
		check_int(send_size, expected);
		check_int(recv_size, expected);
	}
}

static void check_message(const struct bnet_client *client, const struct oneself *connection, size_t size,
			  size_t posted, int expected)
{
	char *from = malloc(posted + 1), *to = malloc(posted + 1);
	void *send_mr, *recv_mr, *send = NULL, *recv = NULL;

	check(from != NULL && to != NULL);
	for (size_t i = 0; i <= posted; i++)
		from[i] = (char)(i * 31 + size);
	memset(to, 0x11, posted + 1);
	check_int(bnet_client_reg(client, connection->send, from, posted + 1, NCCL_PTR_HOST, &send_mr), ncclSuccess);
	check_int(bnet_client_reg(client, connection->recv, to, posted + 1, NCCL_PTR_HOST, &recv_mr), ncclSuccess);
	while (recv == NULL)
		check_int(bnet_client_irecv(client, connection->recv, to, posted, 7, recv_mr, &recv), ncclSuccess);
	while (send == NULL)
		check_int(bnet_client_isend(client, connection->send, from, size, 7, send_mr, &send), ncclSuccess);
	finish(client, send, recv, expected);
	check(memcmp(from, to, size) == 0);
	for (size_t i = size; i <= posted; i++)
		check_int(to[i], 0x11);
	check_int(bnet_client_dereg(client, connection->send, send_mr), ncclSuccess);
	check_int(bnet_client_dereg(client, connection->recv, recv_mr), ncclSuccess);
	free(from);
	free(to);
}

/* Sizes were of type int up to v7 (memory) and v8 (messages). */
static void check_size_limits(const struct bnet_client *client, const struct oneself *connection)
{
	const size_t large = (size_t)INT_MAX + 1;
	char byte = 0;
	void *out = NULL;

	if (client->version < 8)
		check_int(bnet_client_reg(client, connection->send, &byte, large, NCCL_PTR_HOST, &out),
			  ncclInvalidArgument);
	if (client->version < 9) {
		check_int(bnet_client_isend(client, connection->send, &byte, large, 0, NULL, &out),
			  ncclInvalidArgument);
		check_int(bnet_client_irecv(client, connection->recv, &byte, large, 0, NULL, &out),
			  ncclInvalidArgument);
	}
	check(out == NULL);
}

static void drives_version(int version)
{
	struct bnet_client client;
	struct oneself connection;

	check_int(bnet_client_init(&client, bnet_net_table(version), version, print_warnings), ncclSuccess);
	check((client.ctx != NULL) == (version >= 11));
	check_str(bnet_client_name(&client), "BaguaNet");
	check_properties(&client);
	check_int(bnet_client_handle_size(&client), version == 4 ? 64 : 128);
	connection = connect_to_oneself(&client);
	check_message(&client, &connection, 1000, 1000, 1000);
	check_message(&client, &connection, 0, 10, 0);
	check_message(&client, &connection, 5, 1000, 5);
	check_message(&client, &connection, 3000001, 3000001, 3000001);
	check_message(&client, &connection, 17, 17, -1);
	check_size_limits(&client, &connection);
	close_to_oneself(&client, connection);
	check_int(bnet_client_finalize(&client), ncclSuccess);
	check(client.ctx == NULL);
}

int main(void)
{
	setenv("NCCL_SOCKET_IFNAME", "lo", 1);
	alarm(DEADLINE_S);
	refuses_unknown_tables();
	for (int version = 4; version <= 12; version++)
		drives_version(version);
	return 0;
}
