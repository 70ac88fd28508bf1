/* SPDX-License-Identifier: MIT
 *
 * See address.h. Any thread.
 */
#include "base/address.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>

const char *bnet_address_text(const struct sockaddr_storage *addr, char out[BNET_ADDRESS_TEXT])
{
	char host[INET6_ADDRSTRLEN] = "?";

	if (addr->ss_family == AF_INET) {
		const struct sockaddr_in *in = (const struct sockaddr_in *)addr;

		inet_ntop(AF_INET, &in->sin_addr, host, sizeof(host));
		snprintf(out, BNET_ADDRESS_TEXT, "%s:%d", host, ntohs(in->sin_port));
	} else if (addr->ss_family == AF_INET6) {
		const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)addr;

		inet_ntop(AF_INET6, &in6->sin6_addr, host, sizeof(host));
		snprintf(out, BNET_ADDRESS_TEXT, "[%s]:%d", host, ntohs(in6->sin6_port));
	} else {
		snprintf(out, BNET_ADDRESS_TEXT, "an unknown address");
	}
	return out;
}

socklen_t bnet_address_size(const struct sockaddr_storage *addr)
{
	return addr->ss_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
}

bool bnet_same_host(const struct sockaddr *a, const struct sockaddr *b)
{
	const struct sockaddr_in6 *a6 = (const struct sockaddr_in6 *)a, *b6 = (const struct sockaddr_in6 *)b;
	const struct sockaddr_in *a4 = (const struct sockaddr_in *)a, *b4 = (const struct sockaddr_in *)b;

	if (a->sa_family != b->sa_family)
		return false;
	if (a->sa_family == AF_INET6)
		return memcmp(&a6->sin6_addr, &b6->sin6_addr, sizeof(a6->sin6_addr)) == 0;
	return a->sa_family == AF_INET && a4->sin_addr.s_addr == b4->sin_addr.s_addr;
}
