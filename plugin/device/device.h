/* SPDX-License-Identifier: MIT
 *
 * Network interfaces as NCCL selects them, which ones are left out and why, and the devices that they make. A *NIC* is
 * one interface. A *device* is what NCCL has a number for: a NIC, or several as one, which is a virtual device.
 *
 * A table's NICs are found by one thread and never change afterwards. Devices may be added at run time, by one thread
 * at a time; none moves, changes or goes once its number is out, so readers need no lock.
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
#define BNET_MAX_DEVICES 64 /* one for each NIC, and what NCCL merges at run time */
#define BNET_MAX_PARTS 8    /* NCCL merges no more, and before v12 no more than four */
#define BNET_MAX_INTERFACES 128
#define BNET_DEFAULT_SPEED_MBPS 10000

struct bnet_nic {
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

/* Holds the names of all NICs, joined by "+", and NCCL's topology file takes it: 255 characters and the end. */
#define BNET_DEVICE_NAME (BNET_MAX_NICS * IF_NAMESIZE)

/* What NCCL sees, then what it stands for. What a device has once, it has from its first member. */
struct bnet_device {
	char name[BNET_DEVICE_NAME];   /* "eth0", or "eth0+eth1": unique within the table */
	const char *address;           /* printable */
	const char *pci_path;          /* "" where there is none */
	int speed_mbps;                /* the sum */
	bool speed_known;              /* of every member */
	uint64_t guid;
	int nparts;                    /* the devices that NCCL merged into this one, by number; 0: it merged none */
	int parts[BNET_MAX_PARTS];
	int nmembers;                  /* at least one, each once */
	const struct bnet_nic *members[BNET_MAX_NICS];
};

struct bnet_rejected {
	char name[IF_NAMESIZE];
	char address[INET6_ADDRSTRLEN + IF_NAMESIZE + 1]; /* "" where it has none */
	char reason[160];              /* one line that a person can act on */
};

struct bnet_device_table {
	int nnics;
	int nrejected;
	struct bnet_nic nics[BNET_MAX_NICS];
	struct bnet_rejected rejected[BNET_MAX_INTERFACES];
	_Atomic int ndevices; /* released after the device is whole */
	struct bnet_device devices[BNET_MAX_DEVICES];
};

/* Makes the table's devices: one of each NIC. bond: BAGUA_NET_BOND. "1" makes one of all of them, a list of names one
 * of those, in the list's order, and one of each other. 0, or -ENODEV after a line in err: names of the list are no NIC
 * of this table, and the devices are made without them. */
int bnet_devices_make(struct bnet_device_table *table, const char *bond, char *err, size_t err_size);
/* Makes one device of those with these numbers, which stay; the same numbers in the same order give the same one again.
 * Its number, or -EINVAL, -ENOSPC after a line in err. */
int bnet_device_merge(struct bnet_device_table *table, const int *parts, int nparts, char *err, size_t err_size);
/* NULL: no such device. */
const struct bnet_device *bnet_device_get(const struct bnet_device_table *table, int dev);

#endif
