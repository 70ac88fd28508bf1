/* SPDX-License-Identifier: MIT
 *
 * See route.h.
 */
#include "device/route.h"

#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char *bnet_route_rendezvous(void)
{
	const char *id = getenv("NCCL_COMM_ID"), *master = getenv("MASTER_ADDR");

	return id && *id ? id : master && *master ? master : NULL;
}

/* Copies the address without brackets and port. An IPv6 address has several colons, and a port only behind brackets. */
static bool copy_address(const char *text, char *address, size_t size)
{
	const char *colon = strchr(text, ':');
	size_t length = strlen(text);

	if (*text == '[')
		length = strcspn(++text, "]");
	else if (colon && !strchr(colon + 1, ':'))
		length = (size_t)(colon - text);
	return snprintf(address, size, "%.*s", (int)length, text) < (int)size;
}

/* The kernel chooses the source when a UDP socket is connected. */
static bool choose_source(const struct addrinfo *to, struct sockaddr_storage *source)
{
	int fd = socket(to->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	socklen_t size = sizeof(*source);
	bool chosen;

	if (fd < 0)
		return false;
	chosen = connect(fd, to->ai_addr, to->ai_addrlen) == 0 &&
		 getsockname(fd, (struct sockaddr *)source, &size) == 0;
	close(fd);
	return chosen;
}

bool bnet_route_source(const char *to, struct sockaddr_storage *source)
{
	struct addrinfo hints = {.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV, .ai_socktype = SOCK_DGRAM}, *found;
	char address[INET6_ADDRSTRLEN + 16 + 1]; /* with a scope */
	bool chosen;

	memset(source, 0, sizeof(*source));
	if (!to || !copy_address(to, address, sizeof(address)) || getaddrinfo(address, "9", &hints, &found))
		return false;
	chosen = choose_source(found, source);
	freeaddrinfo(found);
	return chosen;
}
