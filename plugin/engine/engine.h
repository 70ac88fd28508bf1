/* SPDX-License-Identifier: MIT
 *
 * The state that a process has once: its parameters, its devices, the lists of everything alive, and the descriptors
 * that the control thread watches. It knows none of the things in its lists: those who put them there do.
 *
 * `lock` guards the lists and all that hangs on them, except for a connection's data path (conn.h). It is held for
 * bookkeeping and for system calls that do not wait, and not while payload is moved or discarded or another thread is
 * awaited. A thread that needs both a connection's owner word and the lock takes the owner word first, or only tries.
 */
#ifndef BNET_ENGINE_H
#define BNET_ENGINE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include "base/config.h"
#include "common/list.h"
#include "base/table.h"
#include "base/worklist.h"
#include "device/device.h"

/* How often the control thread looks at handshakes and drains, and at what callers have begun (handshake/). */
#define BNET_TICK_MS 10

/* Kinds of descriptors that the control thread waits on. The epoll set carries {serial, kind}, never a pointer, since
 * an object may be gone when its event is read. */
enum bnet_watch_kind {
	BNET_WATCH_WAKE = 0,
	BNET_WATCH_LISTENER = 1,
	BNET_WATCH_INBOUND = 2,
	BNET_WATCH_CONNECTOR = 3,
	BNET_WATCH_DRAIN = 4,
	BNET_WATCH_QUESTION = 5,
};

/* The first member of every object that has one. */
struct bnet_watch {
	struct bnet_node node;
	struct bnet_table_entry by_id; /* serial << 3 | kind; while the descriptor is watched */
	int fd;
	uint64_t deadline_ms; /* looked at on every tick */
};

/* One listening socket per NIC; it outlives the listen objects, since streams are added later. */
struct bnet_listener {
	int fd; /* -1: none yet */
	struct sockaddr_storage addr;
	uint64_t paused_until_ms; /* out of descriptors: not accepting, 0: accepting */
	uint64_t looked_ms;       /* the last time that a caller has looked */
	bool by_callers;          /* they look all the time, and accept instead of the control thread */
	uint64_t short_since_ms;  /* no connection could be accepted since then; 0: the last one was */
	int short_of;             /* … and why: -errno */
	uint64_t warn_at_ms;      /* the next warning is due then */
};

struct bnet_engine {
	pthread_mutex_t turnstile; /* held while waiting for `lock`, so that its last holder cannot be the next as well */
	pthread_mutex_t lock;
	pthread_cond_t changed; /* a connection came up or failed, or the thread has ended; CLOCK_MONOTONIC */
	bool configured;
	struct bnet_config config;
	struct bnet_device_table devices;
	int local_ranks; /* of this host, as the launcher says */
	struct bnet_listener listeners[BNET_MAX_NICS];
	/* of bnet_listen, bnet_conn, bnet_path, and of the watches of inbound connections, connectors, drains and
	 * questions */
	struct bnet_node listens, conns, paths, inbound, connectors, drains, questions;
	struct bnet_table listens_by_token;
	struct bnet_table attempts_by_id;  /* of bnet_conn: senders that connect has not returned */
	struct bnet_table senders_by_id;   /* of bnet_conn: those that it has */
	struct bnet_table receivers_by_id; /* of bnet_conn: whatever a further stream may join */
	struct bnet_table watches_by_id;
	struct bnet_worklist active; /* of bnet_conn.work: those on which something was posted lately */
	int active_receivers;        /* … of these */
	struct bnet_node attempts;   /* of bnet_conn.setup.pending, as is the next one: */
	struct bnet_node closed;     /* senders whose close has returned, and that owe something */
	struct bnet_node missing;    /* of bnet_conn.setup.missing */
	struct bnet_node metered;    /* of bnet_conn.meter */
	int ninbound;
	int ndraining_senders;
	bool running;             /* the control thread */
	uint64_t asleep_until_ms; /* … by itself at the latest; 0: it is awake */
	int epoll;
	int wake;
	uint64_t serial;
	uint64_t descriptors_warn_at_ms; /* that there are too few for streams: the next warning is due then */
	uint64_t streams_warn_at_ms;     /* … and that they cannot be opened */
	uint64_t drain_deadline_ms;      /* shared by all closes that overlap */
	uint64_t idle_until_us;          /* the end of the last idle time that was longer than streams go unread */
	uint64_t contended_until_ms;     /* the process shares its processors */
};

extern struct bnet_engine bnet_engine;

void bnet_engine_lock(void);
void bnet_engine_unlock(void);
/* Whoever waits for the lock gets it before this returns. */
void bnet_engine_give_way(void);
/* In a forked child, which holds the lock: threads that waited for it are not there. */
void bnet_engine_unlock_in_child(void);
/* Empty lists, no listener, a new condition. Under the lock, or before any thread knows of it. */
void bnet_engine_init(void);
/* Under the lock: nothing is left for the control thread to look after. */
bool bnet_engine_is_empty(void);
/* Under the lock: waits for `changed`, at most ms. */
void bnet_engine_wait(int ms);

/* ---- waking the control thread ---- */

/* The control thread sleeps without a tick, or with a rare one: a thread that adds to the list of active connections
 * must wake it. */
extern _Atomic bool bnet_engine_wake_on_post;

/* Any thread while the control thread runs, or under the lock. */
void bnet_engine_wake(void);
/* Under the lock: it ticks from now on, within BNET_TICK_MS. */
void bnet_engine_tick_soon(void);

/* Any thread. */
void bnet_engine_activate(struct bnet_work_item *item);

/* Its place among the devices. */
static inline ptrdiff_t bnet_device_number(const struct bnet_device *dev)
{
	return dev - bnet_engine.devices.devices;
}

/* After a post on a connection: the control thread looks at it from now on. */
static inline void bnet_engine_posted(struct bnet_work_item *item)
{
	if (!bnet_work_item_listed(item))
		bnet_engine_activate(item);
}

/* ---- descriptors that the control thread watches; under the lock ---- */

/* In no list, watching fd, which may be -1 for now. */
void bnet_watch_init(struct bnet_watch *watch, int fd);
/* Adds or changes a descriptor in the control thread's epoll set. 0 or -errno. */
int bnet_watch_add(struct bnet_watch *watch, enum bnet_watch_kind kind, uint32_t events);
int bnet_watch_change(struct bnet_watch *watch, uint32_t events);
bool bnet_watch_is_on(const struct bnet_watch *watch);
/* Takes the descriptor out of the set, if it is in it; it is the caller's. */
int bnet_watch_remove(struct bnet_watch *watch);
/* Closes the descriptor, if there is one. */
void bnet_watch_close(struct bnet_watch *watch);
/* The watch of an event; NULL: it is gone. */
struct bnet_watch *bnet_watch_find(uint64_t id);

#endif
