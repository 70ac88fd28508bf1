/* SPDX-License-Identifier: MIT
 *
 * The parts of drive_contract: scenarios, each of which shows one behaviour that NCCL relies on, and shared helpers.
 * Each scenario runs in its own single-threaded process. One with a peer has a second process, forked before either
 * has loaded the library. The process's alarm bounds every wait.
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
	struct bnet_client client;
	int control; /* a stream socket to the other process, if there is one */
	pid_t peer;  /* in the scenario's own process: the peer; 0 once it has been reaped */
	int life[2]; /* a pipe; only the scenario's process keeps the write end, so EOF means that it has ended */
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
extern const struct scenario contract_rejected_scenarios[];
extern const struct scenario contract_wire_scenarios[];
extern const struct scenario contract_streams_scenarios[];
extern const struct scenario contract_options_scenarios[];
extern const struct scenario contract_devices_scenarios[];
extern const struct scenario contract_close_scenarios[];
extern const struct scenario contract_zerocopy_scenarios[];
extern const struct scenario contract_process_scenarios[];

/* Loads the library and calls its init. */
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
/* Polls connect until it fails and returns the error. The scenario fails if connect succeeds. */
ncclResult_t contract_connect_error(struct contract *c, void *handle);

/* Offset of the listener's address in a handle: family 4, 0, port, four bytes. */
#define CONTRACT_HANDLE_ADDRESS 24
/* A plain socket, connected to the listener of an IPv4 handle. Nothing has been sent on it. */
int contract_open_socket(const unsigned char *handle);

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
/* The scenario fails if the network asks to be called again. */
void *contract_isend(struct contract *c, const struct region *region, size_t offset, size_t size);
void *contract_irecv(struct contract *c, const struct region *region, size_t offset, size_t size);
/* Tests until done; returns the size that test reports. */
int contract_wait(struct contract *c, void *request);
struct sizes {
	int sent;
	int received;
};

/* Tests both alternately until both are done. */
struct sizes contract_wait_both(struct contract *c, void *sending, void *receiving);
/* Tests until it fails. The scenario fails if the request completes. */
ncclResult_t contract_wait_error(struct contract *c, void *request);
/* Sends one message of stamped data between fresh regions and checks it. */
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

/* ---- the state of the process ---- */

bnet_counters_t contract_counters(struct contract *c);
int contract_count_threads(void);
int contract_count_descriptors(void);
/* Sleeps for a millisecond, between two looks at something that no event announces, such as /proc. */
void contract_nap(void);

#endif
