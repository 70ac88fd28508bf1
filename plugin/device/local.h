/* SPDX-License-Identifier: MIT
 *
 * Is an address one of this machine's? The kernel is asked about that one address, so the answer is never out of date
 * and does not take longer on a host with many interfaces. A system call of some microseconds; any thread.
 */
#ifndef BNET_LOCAL_H
#define BNET_LOCAL_H

#include <stdbool.h>
#include <sys/socket.h>

/* A link-local address with a scope id is looked for on that interface only: another host may have the same one on
 * another link. False where the kernel does not answer. */
bool bnet_address_is_local(const struct sockaddr *addr);

#endif
