/* SPDX-License-Identifier: MIT
 *
 * The way to the job's rendezvous, which the environment names before any peer is known. Any thread; no state.
 */
#ifndef BNET_ROUTE_H
#define BNET_ROUTE_H

#include <stdbool.h>
#include <sys/socket.h>

/* NCCL_COMM_ID, else MASTER_ADDR; NULL: neither is set. */
const char *bnet_route_rendezvous(void);
/* The address of this machine from which the kernel would reach `to`; for an address of this machine, one of the
 * same interface.
 * to: an address, alone or with a port ("10.0.0.1:29500", "[fd00::1]:29500"); a name counts as unknown, since looking
 * it up may take seconds. Sends nothing. false: unknown, or no route. */
bool bnet_route_source(const char *to, struct sockaddr_storage *source);

#endif
