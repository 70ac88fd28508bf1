/* SPDX-License-Identifier: MIT
 *
 * The state that a process has once: its parameters, its devices, the lists of everything alive, and the descriptors
 * that the control thread watches. It knows none of the things in its lists: those who put them there do.
 *
 * `lock` guards the lists and all that hangs on them, except for a connection's data path (conn.h). The control thread
 * holds it while it works and releases it only to sleep. A thread that needs both a connection's owner word and the
 * lock takes the owner word first, or only tries.
 */
#ifndef BNET_ENGINE_H
#define BNET_ENGINE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#include "base/config.h"
#include "base/list.h"
#include "device/device.h"

/* Kinds of descriptors that the control thread waits on. The epoll set carries {serial, kind}, never a pointer, since
 * an object may be gone when its event is read. */
enum bnet_watch_kind {
	BNET_WATCH_WAKE = 0,
	BNET_WATCH_LISTENER = 1,
	BNET_WATCH_INBOUND = 2,
	BNET_WATCH_CONNECTOR = 3,
	BNET_WATCH_DRAIN = 4,
};

/* The first member of every object that has one. */
struct bnet_watch {
	struct bnet_node node;
	uint64_t id; /* serial << 3 | kind */
	int fd;
	uint64_t deadline_ms; /* looked at on every tick */
};

/* One listening socket per NIC; it outlives the listen objects, since streams are added later. */
struct bnet_listener {
	int fd; /* -1: none yet */
	struct sockaddr_storage addr;
	uint64_t paused_until_ms; /* out of descriptors: not accepting, 0: accepting */
	uint64_t warn_at_ms;      /* the next warning is due then */
};

struct bnet_engine {
	pthread_mutex_t lock;
	pthread_cond_t changed; /* a connection came up or failed, or the thread has ended; CLOCK_MONOTONIC */
	bool configured;
	struct bnet_config config;
	struct bnet_device_table devices;
	struct bnet_listener listeners[BNET_MAX_NICS];
	/* of bnet_listen, bnet_conn, bnet_path, and of the watches of inbound connections, connectors and drains */
	struct bnet_node listens, conns, paths, inbound, connectors, drains;
	int ninbound;
	bool running; /* the control thread */
	int epoll;
	int wake;
	uint64_t serial;
	uint64_t drain_deadline_ms;  /* shared by all closes that overlap */
	uint64_t dozed_us;           /* the end of the last idle time that was longer than streams go unread */
	uint64_t contended_until_ms; /* the process shares its processors */
};

extern struct bnet_engine bnet_engine;

void bnet_engine_lock(void);
void bnet_engine_unlock(void);
/* Empty lists, no listener, a new condition. Under the lock, or before any thread knows of it. */
void bnet_engine_init(void);
/* Under the lock: waits for `changed`, at most ms. */
void bnet_engine_wait(int ms);

/* ---- waking the control thread ---- */

/* The control thread sleeps without a tick: a thread that posts work must wake it. */
extern _Atomic bool bnet_engine_dozing;

/* Any thread while the control thread runs, or under the lock. */
void bnet_engine_wake(void);

/* After a post. */
static inline void bnet_engine_posted(void)
{
	if (atomic_load(&bnet_engine_dozing))
		bnet_engine_wake();
}

/* ---- descriptors that the control thread watches; under the lock ---- */

/* Adds or changes a descriptor in the control thread's epoll set. 0 or -errno. */
int bnet_watch_add(struct bnet_watch *watch, enum bnet_watch_kind kind, uint32_t events);
int bnet_watch_change(struct bnet_watch *watch, uint32_t events);
void bnet_watch_remove(struct bnet_watch *watch);

#endif
