/* SPDX-License-Identifier: MIT
 *
 * What a rank tells the others so that those on its host can share memory with it: which host it is on, and where it
 * can be asked for the memory's descriptor. It travels through the job's own rendezvous. Any thread; no state.
 */
#ifndef BNET_PEER_INFO_H
#define BNET_PEER_INFO_H

#include <stdbool.h>
#include <stdint.h>

/* A name that the kernel gives to a socket bound without one: a zero byte and five digits. */
#define BNET_SHARED_NAME 6

struct bnet_peer_info {
	uint64_t layout; /* of the shared memory, with the library's version; 0: this rank shares none */
	uint64_t secret[2];
	/* Equal on the ranks that can share memory: one boot of one machine, one network namespace (the names of
	 * abstract sockets end there), one user, and one NCCL_HOSTID, by which NCCL's users divide a machine. */
	uint64_t net_device;
	uint64_t net_inode;
	uint64_t host_id;       /* a hash of NCCL_HOSTID */
	uint64_t pid_namespace; /* the PID namespace, in which a process's number means something */
	uint32_t user;
	char boot[40];
	unsigned char name[BNET_SHARED_NAME];
	char reserved[6];
};
_Static_assert(sizeof(struct bnet_peer_info) == 112, "a peer info is part of what ranks exchange");

/* Fills in all but the name. False where the kernel does not say where the process is: then the layout is 0. */
bool bnet_peer_info_fill(struct bnet_peer_info *info);
bool bnet_peer_info_same_host(const struct bnet_peer_info *a, const struct bnet_peer_info *b);
/* Of ranks on one host: does a process's number mean the same to both? */
bool bnet_peer_info_same_pid_namespace(const struct bnet_peer_info *a, const struct bnet_peer_info *b);

#endif
