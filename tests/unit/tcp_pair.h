/* SPDX-License-Identifier: MIT
 *
 * Both ends of a TCP connection over loopback, as they are after a stream's handshake.
 */
#ifndef BNET_TCP_PAIR_H
#define BNET_TCP_PAIR_H

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "check.h"

static inline void pass_byte(int from, int to)
{
	char byte = 'x';

	check_int(send(from, &byte, 1, 0), 1);
	check_int(recv(to, &byte, 1, 0), 1);
}

/* Each end's kernel has acknowledged a byte of the other. */
static inline void open_tcp_pair(int pair[2])
{
	struct sockaddr_in addr = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t size = sizeof(addr);
	int listener = socket(AF_INET, SOCK_STREAM, 0);

	check_int(bind(listener, (struct sockaddr *)&addr, sizeof(addr)), 0);
	check_int(listen(listener, 1), 0);
	check_int(getsockname(listener, (struct sockaddr *)&addr, &size), 0);
	pair[0] = socket(AF_INET, SOCK_STREAM, 0);
	check_int(connect(pair[0], (struct sockaddr *)&addr, sizeof(addr)), 0);
	pair[1] = accept(listener, NULL, NULL);
	check(pair[1] >= 0);
	close(listener);
	pass_byte(pair[0], pair[1]);
	pass_byte(pair[1], pair[0]);
}

#endif
