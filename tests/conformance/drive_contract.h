/* SPDX-License-Identifier: MIT
 *
 * The parts of drive_contract: scenarios, each of which shows one behaviour that NCCL relies on, and what they share.
 * A scenario runs in a process of its own, single-threaded; one with a peer has a second process, forked before either
 * has loaded the library. Every wait is bounded by the process's alarm.
 */
#ifndef BNET_DRIVE_CONTRACT_H
#define BNET_DRIVE_CONTRACT_H

#include <dirent.h>

#include "bagua_net.h"
#include "drive_base.h"

struct contract {
	struct drive_source source;
	int device;
	void *library;
	struct bnet_client table;
	int control; /* a stream socket to the other process, if there is one */
	pid_t peer;  /* in the scenario's own process: the peer, 0 once it has been waited for */
	int life[2]; /* a pipe whose writing end only the scenario's process keeps: end of file when that is over */
};

typedef void scenario_fn(struct contract *c);

struct scenario {
	const char *name;
	scenario_fn *run;
	scenario_fn *peer; /* NULL: no second process */
	int min_api;       /* 0: any */
};

extern const struct scenario contract_data_scenarios[];
extern const struct scenario contract_connect_scenarios[];
extern const struct scenario contract_stranger_scenarios[];
extern const struct scenario contract_wire_scenarios[];
extern const struct scenario contract_streams_scenarios[];
extern const struct scenario contract_options_scenarios[];
extern const struct scenario contract_devices_scenarios[];
extern const struct scenario contract_close_scenarios[];
extern const struct scenario contract_zero_scenarios[];
extern const struct scenario contract_process_scenarios[];

/* Loads the library and initializes its table. */
void contract_load(struct contract *c);
/* The same for a communicator that asks for a traffic class. */
void contract_load_class(struct contract *c, int traffic_class);
void contract_finalize(struct contract *c);

/* ---- connections ---- */

struct pair { /* both ends of a connection in this process */
	void *send;
	void *recv;
};

void *contract_listen(struct contract *c, void *handle);
void *contract_connect(struct contract *c, void *handle); /* polls until it is connected */
void *contract_accept(struct contract *c, void *listen_comm);
struct pair contract_pair(struct contract *c);
void contract_close_pair(struct contract *c, struct pair pair);
/* Polls connect until it fails, and returns how; connecting is a failure of the scenario. */
ncclResult_t contract_connect_error(struct contract *c, void *handle);

/* Where a handle has the listener's address: family 4, 0, port, four bytes. */
#define CONTRACT_HANDLE_ADDRESS 24
/* A socket of our own that is connected to the listener of an IPv4 handle, and has said nothing. */
int contract_dial(const unsigned char *handle);

/* With the peer process: one end here, the other end there. */
void *contract_connect_to_peer(struct contract *c);
void *contract_accept_from_peer(struct contract *c);

/* ---- memory and messages ---- */

struct region {
	unsigned char *data;
	size_t size;
	void *comm;
	void *mhandle;
};

struct region contract_map(struct contract *c, void *comm, size_t size);
void contract_unmap(struct contract *c, struct region *region); /* deregMr, then munmap */
/* Must be accepted at once. */
void *contract_isend(struct contract *c, const struct region *region, size_t offset, size_t size);
void *contract_irecv(struct contract *c, const struct region *region, size_t offset, size_t size);
/* Tests until done; the size that test reports. */
int contract_wait(struct contract *c, void *request);
struct sizes {
	int sent;
	int received;
};

/* Tests both in turn until both are done. */
struct sizes contract_wait_both(struct contract *c, void *sending, void *receiving);
/* Tests until it fails; completing is a failure of the scenario. */
ncclResult_t contract_wait_error(struct contract *c, void *request);
/* One message of stamped data through a fresh region each, and its check. */
void contract_exchange(struct contract *c, struct pair pair, size_t size);
void contract_send_stamped(struct contract *c, void *comm, size_t size, uint64_t message);
void contract_recv_stamped(struct contract *c, void *comm, size_t size, uint64_t message);
struct drive_stamp contract_stamp(uint64_t message);

/* ---- the two processes ---- */

void contract_tell(struct contract *c, char what);
void contract_await(struct contract *c, char what);
void contract_give(struct contract *c, const void *data, size_t size);
void contract_take(struct contract *c, void *data, size_t size);
void contract_kill_peer(struct contract *c);
/* Waits for a peer that must end with status 0. */
void contract_join_peer(struct contract *c);

/* ---- what the process has ---- */

bnet_counters_t contract_counters(struct contract *c);
int contract_count_threads(void);
int contract_count_descriptors(void);
/* A millisecond, between two looks at something that nobody announces (/proc). */
void contract_nap(void);

#endif
