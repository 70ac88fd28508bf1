/* SPDX-License-Identifier: MIT
 *
 * The loads of the track over two kinds of transport: p2p_* drives an ncclNet table as NCCL's progress thread does,
 * raw_* is a tight loop on raw sockets, the limit of machine and path. Both have the same signatures for rank.py. An
 * object is one rank with `lanes` connections to its peer and as many from it; it belongs to one thread. many_* makes
 * thousands of connections over an ncclNet table and times each call. Functions return 0 or -errno, and traffic_error()
 * describes the error in a sentence.
 */
#ifndef TRAFFIC_H
#define TRAFFIC_H

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#include "common/abi.h"

#define TRAFFIC_MAX_LANES 256
#define TRAFFIC_MAX_INFLIGHT 32
/* After its window a rank keeps sending for this time, so that a peer that started later still counts a full window. */
#define TRAFFIC_TAIL_S 0.1

/* Processor time in seconds and context switches: since an arbitrary start, or a difference. */
struct traffic_usage {
	double user; /* of the process, with its driving thread */
	double system;
	double driver_user; /* of the calling thread, which drives the transport */
	double driver_system;
	double softirq;  /* of the whole machine */
	double switches; /* voluntary ones of all other threads: the times they were woken */
};

struct traffic_window {
	uint64_t bytes;   /* payload received on all lanes */
	uint64_t slowest; /* on the lane that received least; 0 from raw_* */
	double seconds;
	struct traffic_usage used; /* zero from raw_* */
};

/* usage.c: since an arbitrary start; and since `before`. */
struct traffic_usage traffic_usage_now(void);
struct traffic_usage traffic_usage_since(const struct traffic_usage *before);
/* The driving thread sleeps for window_s. */
void traffic_idle(double window_s, struct traffic_window *out);

const char *traffic_error(void);
int traffic_fail(int error, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* 0, or -EIO where a call of a table returned an error. */
int traffic_result(ncclResult_t result, const char *call);
/* A table's logger: warnings go to stderr, with TRACK_VERBOSE everything. */
void traffic_log(ncclDebugLogLevel level, unsigned long flags, const char *file, int line, const char *format, ...);

static inline double traffic_now(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* The message's number in its first and last eight bytes. Not a full check, but it catches a transport that delivers
 * into the wrong buffer, in the wrong order or too early. */
static inline void traffic_stamp(char *buffer, size_t size, uint64_t number)
{
	if (size < 2 * sizeof(number))
		return;
	memcpy(buffer, &number, sizeof(number));
	memcpy(buffer + size - sizeof(number), &number, sizeof(number));
}

static inline int traffic_check(const char *buffer, size_t size, uint64_t number)
{
	if (size < 2 * sizeof(number))
		return 0;
	if (memcmp(buffer, &number, sizeof(number)) || memcmp(buffer + size - sizeof(number), &number, sizeof(number)))
		return traffic_fail(-EBADMSG, "message %llu carries another one's bytes", (unsigned long long)number);
	return 0;
}

struct p2p;
/* table: an ncclNet table of this version; devices: lanes use its first `devices` devices in turn; largest: bytes of
 * the largest message. */
int p2p_create(struct p2p **out, const void *table, int version, int devices, int lanes, int inflight, size_t largest);
/* Number of devices of the table. */
int p2p_devices(const struct p2p *p2p);
/* The driver's sleep in microseconds after a pass that moved nothing; 0: it yields. */
void p2p_set_nap(struct p2p *p2p, int nap_us);
/* A lane sends `inflight` messages, and then one for each that has come: as a ring does, whose ranks pass data on. */
void p2p_set_coupled(struct p2p *p2p, bool coupled);
size_t p2p_handle_size(const struct p2p *p2p);
/* Fills lanes × handle_size bytes, which the caller carries to the peer, or each lane's to another peer. */
int p2p_listen(struct p2p *p2p, void *handles);
int p2p_connect(struct p2p *p2p, const void *peer_handles, double timeout_s);
/* Messages of `size` bytes both ways on all lanes. Returns with nothing outstanding. */
int p2p_stream(struct p2p *p2p, size_t size, double warm_up_s, double window_s, struct traffic_window *out);
/* One message back and forth on one lane. half_us[rounds]: half of each round trip, in microseconds (first != 0 only).
 * */
int p2p_pingpong(struct p2p *p2p, int first, size_t size, int warm_up, int rounds, double *half_us);
/* Nothing is posted for window_s; the driving thread sleeps. */
int p2p_idle(struct p2p *p2p, double window_s, struct traffic_window *out);
void p2p_destroy(struct p2p *p2p);

struct many;
#define MANY_MOST 16384
#define MANY_LEAST_SIZE 8

/* The calls of a phase; times in seconds, of CLOCK_MONOTONIC. */
struct many_calls {
	uint64_t count;
	double longest;
	double longest_wait; /* … of those in which the thread waited, and was not only interrupted */
	double began, ended;
};

/* count: connections from this rank to its peer, and as many from there; size: bytes of a message. Raises the limit of
 * open files as far as it may. */
int many_create(struct many **out, const void *table, int version, int count, size_t size);
size_t many_handle_size(const struct many *many);
int many_listen(struct many *many, void *handles, struct many_calls *out);
/* `together` connections at a time. Each listen object is closed after its accept. */
int many_connect(struct many *many, const void *peer_handles, int together, double timeout_s, struct many_calls *out);
int many_register(struct many *many);
/* One message after the other on every connection, one outstanding. Returns with nothing outstanding; the connections
 * can then only be closed. */
int many_move(struct many *many, double warm_up_s, double window_s, struct many_calls *calls,
	      struct traffic_window *out);
/* Ends all connections and the object. */
int many_close(struct many *many, struct many_calls *out);

struct raw;
/* address: this rank's own IPv4 address; sndbuf: SO_SNDBUF in bytes, 0 leaves it to the kernel. */
int raw_create(struct raw **out, const char *address, int sndbuf, int lanes, int inflight, size_t largest);
size_t raw_handle_size(const struct raw *raw);
int raw_listen(struct raw *raw, void *handles);
int raw_connect(struct raw *raw, const void *peer_handles, double timeout_s);
/* Ends the sending direction: an object carries one stream. */
int raw_stream(struct raw *raw, size_t size, double warm_up_s, double window_s, struct traffic_window *out);
int raw_pingpong(struct raw *raw, int first, size_t size, int warm_up, int rounds, double *half_us);
void raw_destroy(struct raw *raw);

#endif
