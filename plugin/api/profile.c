/* SPDX-License-Identifier: MIT
 *
 * See profile.h.
 */
#include "api/profile.h"

#include "common/abi.h"

/* A message goes over several sockets. */
#define NO_DESCRIPTOR (-1)

void bnet_profile_begin(struct bnet_request *request, void *step, size_t length)
{
	const struct bnet_conn *conn = request->conn;
	ncclProfilerNetSockDescr_v1_t data;

	if (!step || !conn->profiler)
		return;
	data = (ncclProfilerNetSockDescr_v1_t){
		.type = ncclProfileSocket,
		.sock = {.fd = NO_DESCRIPTOR,
			 .op = conn->sender ? NCCL_SOCKET_SEND : NCCL_SOCKET_RECV,
			 .length = length},
	};
	conn->profiler(&request->profiled, ncclProfilerNetEventStart, step, NCCL_PROFILER_NET_TYPE_SOCK | 1, &data);
}

void bnet_profile_end(struct bnet_request *request)
{
	if (!request->profiled)
		return;
	request->conn->profiler(&request->profiled, ncclProfilerNetEventStop, NULL, 0, NULL);
	request->profiled = NULL;
}
