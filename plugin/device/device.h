/* SPDX-License-Identifier: MIT
 *
 * Network interfaces as NCCL selects them, the rejected ones with reasons, and the devices made of them. A *NIC* is one
 * interface. A *device* is what NCCL addresses by number: one NIC, or a virtual device of several.
 *
 * One thread fills a table's NICs, which never change afterwards. Devices may be added at run time, by one thread at a
 * time. A published device never moves, changes or disappears, so readers need no lock.
 */
#ifndef BNET_DEVICE_H
#define BNET_DEVICE_H

#include <net/if.h>
#include <netinet/in.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#define BNET_MAX_NICS 16
#define BNET_MAX_DEVICES 64 /* one for each NIC, and those that NCCL merges at run time */
#define BNET_MAX_PARTS 8    /* NCCL's maximum; four before v12 */
#define BNET_MAX_INTERFACES 128
#define BNET_DEFAULT_SPEED_MBPS 10000

struct bnet_nic {
	char name[IF_NAMESIZE];                           /* unique within the table */
	char address[INET6_ADDRSTRLEN + IF_NAMESIZE + 1]; /* printable, with the scope */
	char pci_path[256];                               /* "" for virtual interfaces */
	struct sockaddr_storage addr; /* port 0; a link-local address has this interface's scope id */
	int ifindex;
	bool on_route; /* this machine reaches the job's rendezvous from an address of it */
	bool passive;  /* loopback or dummy with an address of the host's: packets leave through other interfaces */
	int speed_mbps;
	bool speed_known;
	int mtu;
	int numa_node;
	uint64_t guid; /* equal only for ports of one card */
};

/* Holds the names of all NICs, joined by "+". NCCL's topology file accepts names of up to 255 characters. */
#define BNET_DEVICE_NAME (BNET_MAX_NICS * IF_NAMESIZE)

/* What NCCL sees, then the parts and members behind it. Address, PCI path and guid are those of the first member. */
struct bnet_device {
	char name[BNET_DEVICE_NAME]; /* "eth0", or "eth0+eth1": unique within the table */
	const char *address;         /* printable */
	const char *pci_path;        /* "": none */
	int speed_mbps;              /* the sum of the members' */
	bool speed_known;            /* for every member */
	uint64_t guid;
	int nparts;                /* how many devices NCCL merged into this one; 0: not merged by NCCL */
	int parts[BNET_MAX_PARTS]; /* their numbers */
	int nmembers;              /* at least one */
	const struct bnet_nic *members[BNET_MAX_NICS]; /* without duplicates */
};

struct bnet_rejected {
	char name[IF_NAMESIZE];
	char address[INET6_ADDRSTRLEN + IF_NAMESIZE + 1]; /* "": none */
	char reason[192];                                 /* one line that a person can act on */
};

struct bnet_device_table {
	int nnics;
	int nrejected;
	struct bnet_nic nics[BNET_MAX_NICS];
	struct bnet_rejected rejected[BNET_MAX_INTERFACES];
	_Atomic int ndevices; /* store-released once the device is complete */
	struct bnet_device devices[BNET_MAX_DEVICES];
};

/* Makes the table's devices, by default one for each NIC. bond: the value of BAGUA_NET_BOND. "1" makes one device of
 * all NICs; a list of names makes one of the listed NICs, in the list's order, and one of each other NIC. 0, or -ENODEV
 * with a line in err: names of the list are no NICs of this table, and the devices are made without them. */
int bnet_devices_make(struct bnet_device_table *table, const char *bond, char *err, size_t err_size);
/* Merges the devices with these numbers into a new one; they remain. The same numbers in the same order return the same
 * device. Its number, or -EINVAL, -ENOSPC or, with pci_only and a virtual interface among them, -EOPNOTSUPP, with a
 * line in err. */
int bnet_device_merge(struct bnet_device_table *table, const int *parts, int nparts, bool pci_only, char *err,
		      size_t err_size);
/* NULL: no such device. */
const struct bnet_device *bnet_device_get(const struct bnet_device_table *table, int dev);

#endif
