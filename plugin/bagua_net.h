/* SPDX-License-Identifier: MIT
 *
 * The public interface of libnccl-net-bagua.so, besides the ncclNetPlugin_v4 … v12 tables that NCCL looks up.
 * Python reads the part between the two markers with cffi, so it holds plain declarations only.
 *
 * Functions return 0 or a negative errno value, unless they say otherwise. Strings are owned by the library and stay
 * valid until it is unloaded. Nothing here is called on NCCL's data path.
 */
#ifndef BAGUA_NET_H
#define BAGUA_NET_H

#include <stddef.h>
#include <stdint.h>

#if defined(__cplusplus)
extern "C" {
#endif
#if defined(__GNUC__)
#pragma GCC visibility push(default)
#endif

/* cffi: begin */

/* ---- the library ---- */

/* Incremented whenever a declaration below changes its meaning or layout. Python refuses a library with another one. */
int bnet_abi_version(void);
/* "0.1.0" */
const char *bnet_version(void);
/* The ncclNet table of API version 4 to 12, the one that NCCL finds by name; NULL for any other number. */
const void *bnet_net_table(int version);
/* What else the network tells about its devices and connections, for bnet_coll_look. */
const void *bnet_net_look(void);

/* ---- parameters: the rows of config.def ---- */

typedef struct {
	const char *name;  /* BAGUA_NET_… */
	const char *kind;  /* "int", "bytes", "string", "ports" */
	const char *deflt; /* as a user would write it */
	const char *range; /* "1 … 64", or "" */
	const char *help;  /* one line */
	const char *value; /* in effect, as a user would write it */
	const char *error; /* NULL, or why the value in the environment is invalid */
	int set;           /* 1: the environment sets it */
} bnet_param_t;

int bnet_param_count(void);
/* Row 0 … count-1. Reads the environment at each call. -EINVAL: no such row. One thread at a time. */
int bnet_param_get(int row, bnet_param_t *out);

/* ---- interfaces: those that the plugin offers to NCCL, and those that it rejects ---- */

typedef struct {
	const char *name;     /* eth0 */
	const char *address;  /* 10.0.0.4 or fe80::1%eth0 */
	const char *pci_path; /* /sys/devices/pci… or NULL */
	const char *reason;   /* NULL: offered to NCCL; otherwise one line with the reason why not */
	int speed_mbps;       /* as reported to NCCL */
	int speed_known;      /* 0: the kernel reports no speed, and 10000 is assumed */
	int mtu;
	int numa_node; /* -1: unknown */
} bnet_interface_t;

/* Scans the machine by the rules of NCCL_SOCKET_IFNAME, NCCL_SOCKET_FAMILY and BAGUA_NET_ADDRESS_PREFIX. Returns the
 * number of rows, or -errno. The rows stay unchanged until the next call. One thread at a time. */
int bnet_interface_scan(void);
int bnet_interface_get(int row, bnet_interface_t *out);
/* What counts as NCCL_SOCKET_IFNAME in this process where that is not set, before the first connection: for programs
 * that know by other means. The string must stay valid. */
void bnet_interface_prefer(const char *ifname);

/* ---- counters of this process since the library was loaded ---- */

typedef struct {
	uint64_t bytes_sent;     /* payload passed to the kernel */
	uint64_t bytes_received; /* payload placed in receive buffers */
	uint64_t messages_sent;
	uint64_t messages_received;
	uint64_t slices_sent;
	uint64_t slices_received;
	uint64_t send_calls;    /* system calls that send */
	uint64_t send_again;    /* … of these, calls that found the socket full */
	uint64_t receive_calls; /* system calls that receive */
	uint64_t receive_again; /* … of these, calls that found no data */
	uint64_t poll_calls;
	uint64_t connections;     /* open now */
	uint64_t streams;         /* open now */
	uint64_t descriptors;     /* open now, of all kinds */
	uint64_t rejected;        /* inbound connections that were refused */
	uint64_t takeovers;       /* progress passes by the control thread because the caller had stopped polling */
	uint64_t zerocopy_calls;  /* system calls that sent without a copy */
	uint64_t zerocopy_copied; /* notifications that the kernel copied nevertheless */
	uint64_t repairs;         /* streams that were put in the place of broken ones */
	uint64_t slices_repeated; /* … and slices that were sent again on them */
	uint64_t unverified;      /* frames of encrypted streams that did not verify, or failed their checksum */
	uint64_t lock_wait_us;    /* the longest time that a thread waited for the lock of the process's state */
} bnet_counters_t;

void bnet_counters(bnet_counters_t *out);

/* cffi: end */

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif
#if defined(__cplusplus)
}
#endif

#endif
