/* SPDX-License-Identifier: MIT
 *
 * What a process has once: its parameters, its devices, the lists of everything alive, and the control thread, which
 * accepts, dials, greets, drains and looks after connections whose owner is away. The thread starts with the first
 * listen or connect and ends when the lists are empty.
 *
 * `lock` guards the lists and all that hangs on them, except for a connection's data path (conn.h). The control thread
 * holds it while it works and gives it up only to sleep. Whoever needs both a connection's owner word and the lock
 * takes the owner word first, or only tries.
 */
#ifndef BNET_ENGINE_H
#define BNET_ENGINE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/config.h"
#include "transport/conn.h"
#include "device/device.h"
#include "base/list.h"
#include "wire/wire.h"

/* Kinds of descriptors that the control thread waits on. The epoll set carries {serial, kind}, never a pointer, since
 * an object may be gone when its event is read. */
enum bnet_watch_kind {
	BNET_WATCH_WAKE = 0,
	BNET_WATCH_LISTENER = 1,
	BNET_WATCH_INBOUND = 2,
	BNET_WATCH_CONNECTOR = 3,
	BNET_WATCH_DRAIN = 4,
};

struct bnet_watch {
	struct bnet_node node;
	uint64_t id;          /* serial << 3 | kind */
	int fd;
	uint64_t deadline_ms; /* looked at on every tick */
};

/* One listening socket per NIC; it outlives the listen objects, since streams are added later. */
struct bnet_listener {
	int fd; /* -1: none yet */
	struct sockaddr_storage addr;
	uint64_t paused_until_ms; /* out of descriptors: not accepting, 0: accepting */
	uint64_t warn_at_ms;      /* it has been said; again from here on */
};

/* What NCCL's listen returns: a token under which peers may connect. */
struct bnet_listen {
	struct bnet_node node;
	struct bnet_node queue; /* of bnet_conn.setup.accepted: greeted, not yet accepted */
	const void *context;
	int traffic_class; /* of the streams that come by it */
	const struct bnet_device *dev;
	struct sockaddr_storage addr; /* of the handle: the first member's that can be listened on */
	uint8_t token[BNET_TOKEN_SIZE];
	uint64_t started_ms; /* of the first accept that found nothing */
	uint64_t warn_at_ms;
};

struct bnet_engine {
	pthread_mutex_t lock;
	pthread_cond_t changed; /* a connection came up or failed, or the thread has ended; CLOCK_MONOTONIC */
	bool configured;
	struct bnet_config config;
	struct bnet_device_table devices;
	int workers; /* how many there will be; chosen when the above was read, and kept by forked children */
	struct bnet_listener listeners[BNET_MAX_NICS];
	struct bnet_node listens, conns, paths, guests, dials, drains;
	int nguests;
	bool running;
	int epoll;
	int wake;
	uint64_t serial;
	uint64_t drain_deadline_ms; /* all closes that overlap share it */
	uint64_t housekept_ms;       /* when guests, dials and drains were last looked at */
	uint64_t paths_ms;           /* when paths were */
	uint64_t sampled_ms;         /* when switches were */
	long switches;               /* involuntary ones of this process until then */
	uint64_t dozed_us;           /* until then there was nothing to do, for longer than streams go unread */
	uint64_t contended_until_ms; /* the process shares its processors */
};

extern struct bnet_engine bnet_engine;
/* The control thread sleeps without a tick: whoever posts work wakes it. */
extern _Atomic bool bnet_engine_dozing;

/* Reads the configuration and the devices, the first time. 0, or -errno after one line in the log. */
int bnet_engine_configure(void);
void bnet_engine_lock(void);
void bnet_engine_unlock(void);
/* Under the lock: the thread runs when this returns 0. */
int bnet_engine_start(void);
void bnet_engine_wake(void);
/* Under the lock: waits for `changed`, at most ms. */
void bnet_engine_wait(int ms);
uint64_t bnet_now_ms(void);
uint64_t bnet_now_us(void);
uint64_t bnet_now_ns(void);
/* Not zero. */
uint64_t bnet_random(void);

static inline void bnet_engine_posted(void)
{
	if (atomic_load(&bnet_engine_dozing))
		bnet_engine_wake();
}

/* Under the lock: adds or changes a descriptor in the control thread's epoll set. 0 or -errno. */
int bnet_watch_add(struct bnet_watch *watch, enum bnet_watch_kind kind, uint32_t events);
int bnet_watch_change(struct bnet_watch *watch, uint32_t events);
/* Takes the descriptor out of the set; it stays open. */
void bnet_watch_remove(struct bnet_watch *watch);

/* guest.c: inbound sockets until they are greeted. Under the lock. */
/* Listens on every member; *first: the first one's address. 0, or -errno where none of them can be listened on. */
int bnet_acceptor_listen(const struct bnet_device *dev, struct sockaddr_storage *first);
void bnet_acceptor_ready(int nic);
void bnet_inbound_ready(struct bnet_watch *watch, uint32_t events);
void bnet_inbound_drop(struct bnet_watch *watch, const char *why);
void bnet_acceptor_tick(uint64_t now);
void bnet_listen_discard(struct bnet_listen *listen);

/* dial.c: outbound sockets until they are greeted. Under the lock. */
int bnet_connector_start(struct bnet_conn *conn, int index);
void bnet_connector_ready(struct bnet_watch *watch, uint32_t events);
void bnet_connectors_tick(uint64_t now);
void bnet_connectors_cancel(const struct bnet_conn *conn);

/* drain.c: closed connections' sockets until the peer has everything. Under the lock. */
void bnet_drain_start(struct bnet_conn *conn);
/* The same for one socket that has left its connection. */
void bnet_drain_socket(int fd, bool sender);
void bnet_drain_ready(struct bnet_watch *watch);
void bnet_drains_tick(uint64_t now);
/* Does one of them still carry bytes that were reported as sent? */
bool bnet_drains_matter(void);

/* The end of a connection, in any state, under the lock: its dials are cancelled, its sockets drained, its memory
 * freed. The caller owns it, or nobody else knows it. */
void bnet_conn_discard(struct bnet_conn *conn);

#endif
