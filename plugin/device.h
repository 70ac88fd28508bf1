/* SPDX-License-Identifier: MIT
 *
 * Network interfaces as NCCL selects them: which ones are devices, which are not and why, and what NCCL is told of
 * each. A table is built by one thread and never changes afterwards, so its readers need no lock.
 */
#ifndef BNET_DEVICE_H
#define BNET_DEVICE_H

#include <net/if.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#define BNET_MAX_DEVICES 16
#define BNET_MAX_INTERFACES 128
#define BNET_DEFAULT_SPEED_MBPS 10000

struct bnet_device {
	char name[IF_NAMESIZE];        /* unique within the table */
	char address[INET6_ADDRSTRLEN + IF_NAMESIZE + 1]; /* printable, with the scope */
	char pci_path[256];            /* "" where there is none (virtual interfaces) */
	struct sockaddr_storage addr;  /* port 0; a link-local address has this interface's scope id */
	socklen_t addr_len;
	int ifindex;
	int speed_mbps;
	bool speed_known;
	int mtu;
	int numa_node;
	bool loopback;
	uint64_t guid;                 /* equal for ports of one card only */
};

struct bnet_rejected {
	char name[IF_NAMESIZE];
	char address[INET6_ADDRSTRLEN + IF_NAMESIZE + 1]; /* "" where it has none */
	char reason[160];              /* one line that a person can act on */
};

struct bnet_device_table {
	int ndevices;
	int nrejected;
	struct bnet_device devices[BNET_MAX_DEVICES];
	struct bnet_rejected rejected[BNET_MAX_INTERFACES];
};

/* Does the interface name match a list in NCCL's syntax ("eth,ib", "=eth0", "^docker,lo")? An entry may end in
 * ":port", which is ignored. Pure. */
bool bnet_ifname_match(const char *list, const char *name);

/* Fills the table from the machine. ifname: NCCL_SOCKET_IFNAME or NULL; family: NCCL_SOCKET_FAMILY ("AF_INET",
 * "AF_INET6") or NULL. 0, or -errno: -ENODEV when nothing is left (the rejected rows say why), -EINVAL for an unknown
 * family. */
int bnet_device_scan(struct bnet_device_table *table, const char *ifname, const char *family);

/* Is this address one of this machine's own (any interface)? Then the peer is local. */
bool bnet_address_is_local(const struct sockaddr *addr);

#endif
