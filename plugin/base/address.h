/* SPDX-License-Identifier: MIT
 *
 * Socket addresses, IPv4 and IPv6. Any thread; no state.
 */
#ifndef BNET_ADDRESS_H
#define BNET_ADDRESS_H

#include <stdbool.h>
#include <sys/socket.h>

/* "10.0.0.4:1234" or "[fe80::1]:1234". */
#define BNET_ADDRESS_TEXT 80
const char *bnet_address_text(const struct sockaddr_storage *addr, char out[BNET_ADDRESS_TEXT]);

socklen_t bnet_address_size(const struct sockaddr_storage *addr);

/* Compares addresses and ignores port and scope. False for other families. */
bool bnet_same_host(const struct sockaddr *a, const struct sockaddr *b);

#endif
