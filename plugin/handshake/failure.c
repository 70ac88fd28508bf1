/* SPDX-License-Identifier: MIT
 *
 * See failure.h.
 */
#include "handshake/failure.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* The peer listens before its handle travels, so a refusal says that its process has ended, or that something on the
 * way is not ready: the proxy beside a container, a firewall. NCCL's own Socket network tries for as long. */
#define REFUSED_MS 60000
#define EXTRA_REFUSED_MS 10000
/* Between two processes of this machine nothing is on the way. */
#define LOCAL_REFUSED_MS 1000
/* What this machine's own set-up forbids: long enough for a link that comes up again, and before the peer, which waits
 * as well, warns for a reason that is not the true one. */
#define ROUTE_MS 5000

bool bnet_failure_of_route(int error)
{
	return error == -ENETUNREACH || error == -EHOSTUNREACH || error == -EADDRNOTAVAIL || error == -EINVAL ||
	       error == -ETIMEDOUT || error == -ENODEV || error == -EACCES;
}

bool bnet_failure_refused(int error)
{
	return error == -ECONNREFUSED || error == -ECONNRESET;
}

enum bnet_failure bnet_failure_of(int error)
{
	switch (error) {
	case -ECONNREFUSED:
		return BNET_FAILURE_REFUSED;
	case -ECONNRESET:
		return BNET_FAILURE_RESET;
	case -EHOSTUNREACH:
		return BNET_FAILURE_NO_HOST;
	case -ETIMEDOUT:
		return BNET_FAILURE_NO_ANSWER;
	case -EADDRINUSE: /* of this machine as well, and others may end */
		return BNET_FAILURE_NO_ROUTE;
	default:
		return bnet_failure_of_route(error) ? BNET_FAILURE_NO_ROUTE : BNET_FAILURE_FINAL;
	}
}

uint64_t bnet_failure_patience_ms(enum bnet_failure failure, bool local, bool extra)
{
	switch (failure) {
	case BNET_FAILURE_NO_ANSWER:
		return UINT64_MAX; /* bnet_connectors_tick ends the tries after BAGUA_NET_CONNECT_TIMEOUT */
	case BNET_FAILURE_REFUSED:
	case BNET_FAILURE_RESET:
		if (local)
			return LOCAL_REFUSED_MS;
		/* fall through */
	case BNET_FAILURE_NO_HOST:
		return extra ? EXTRA_REFUSED_MS : REFUSED_MS;
	case BNET_FAILURE_NO_ROUTE:
		return ROUTE_MS;
	case BNET_FAILURE_NONE:
	case BNET_FAILURE_FINAL:
		break;
	}
	return 0;
}

const char *bnet_failure_explain(int error, bool local, char text[BNET_EXPLANATION])
{
	const char *hint = "";

	if (error == -ECONNREFUSED && local)
		return "nothing listens there: the remote process has ended, or it is on another host that has this host's "
		       "address as well, as of a bridge of containers (NCCL_SOCKET_IFNAME)";
	if (error == -EUSERS)
		return "it has no room for another stream";
	if (error == -ECONNREFUSED)
		return "nothing listens there: the remote process has ended, or a firewall rejects it (BAGUA_NET_PORT_RANGE)";
	if (error == -ETIMEDOUT)
		return "no answer within BAGUA_NET_CONNECT_TIMEOUT: that address cannot be reached from this interface "
		       "(NCCL_SOCKET_IFNAME), or a firewall drops it (BAGUA_NET_PORT_RANGE)";
	if (error == -EADDRINUSE)
		return "this host has no free port left in net.ipv4.ip_local_port_range: widen it, or end what holds them "
		       "(ss -tan)";
	if (error == -EACCES || error == -EPERM)
		hint = ": this host's firewall or security module forbids it";
	else if (error == -EADDRNOTAVAIL)
		hint = ". NCCL_SOCKET_IFNAME chooses the interface, NCCL_SOCKET_FAMILY between IPv4 and IPv6, on every host; "
		       "or this host has no free port left in net.ipv4.ip_local_port_range";
	else if (bnet_failure_of_route(error))
		hint = ". NCCL_SOCKET_IFNAME chooses the interface, NCCL_SOCKET_FAMILY between IPv4 and IPv6, on every host";
	snprintf(text, BNET_EXPLANATION, "%s%s", strerror(-error), hint);
	return text;
}
