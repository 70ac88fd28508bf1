/* SPDX-License-Identifier: MIT
 *
 * The two kinds of traffic that the track measures, for two ways to carry it: p2p_* drives an ncclNet table as NCCL's
 * progress thread does, raw_* is a tight loop on plain sockets (what the machine and the path allow at best). rank.py
 * calls both by the same names. One object is one rank with `lanes` connections to its peer and as many from it, and
 * belongs to one thread. Functions return 0 or -errno, and traffic_error() says in a sentence what happened.
 */
#ifndef TRAFFIC_H
#define TRAFFIC_H

#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#define TRAFFIC_MAX_LANES 256
#define TRAFFIC_MAX_INFLIGHT 32
/* After its window a rank keeps sending this long, so that a peer that started later still counts a full one. */
#define TRAFFIC_TAIL_S 0.1

/* Processor time in seconds, and switches: since some start, or the difference of two of those. */
struct traffic_usage {
	double user;             /* of the process, with its driving thread */
	double system;
	double driver_user;      /* of the thread that asks, which is the one that drives */
	double driver_system;
	double softirq;          /* of the whole machine */
	double switches;         /* voluntary ones of all other threads: so often they slept, and were woken */
};

struct traffic_window {
	uint64_t bytes;          /* payload received on all lanes */
	uint64_t slowest;        /* on the lane that received the least; 0 from raw_* */
	double seconds;
	struct traffic_usage used; /* nought from raw_* */
};

/* usage.c: from some start until now; and what has been used since `before`. */
struct traffic_usage traffic_usage_now(void);
struct traffic_usage traffic_usage_since(const struct traffic_usage *before);

const char *traffic_error(void);
int traffic_fail(int error, const char *format, ...) __attribute__((format(printf, 2, 3)));

static inline double traffic_now(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* The message's number in its first and last eight bytes: no full check, but a transport that delivers into the wrong
 * buffer, in the wrong order or too early is caught. */
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
/* table: an ncclNet table of that version; devices: lanes are dealt out in turn to its first so many devices; largest:
 * bytes of the largest message to come. */
int p2p_create(struct p2p **out, const void *table, int version, int devices, int lanes, int inflight,
	       size_t largest);
/* How many devices the table has. */
int p2p_devices(const struct p2p *p2p);
/* After a pass that moved nothing the driver of a stream sleeps so long, and does not yield. Microseconds; 0: it does. */
void p2p_set_nap(struct p2p *p2p, int nap_us);
size_t p2p_handle_size(const struct p2p *p2p);
/* Fills lanes × handle_size bytes, which the caller carries to the peer, or each lane's to a peer of its own. */
int p2p_listen(struct p2p *p2p, void *handles);
int p2p_connect(struct p2p *p2p, const void *peer_handles, double timeout_s);
/* Messages of `size` bytes both ways on all lanes. Returns with nothing outstanding. */
int p2p_stream(struct p2p *p2p, size_t size, double warm_up_s, double window_s, struct traffic_window *out);
/* One message to and fro on one lane. half_us[rounds]: half of each round trip, in microseconds (first != 0 only). */
int p2p_pingpong(struct p2p *p2p, int first, size_t size, int warm_up, int rounds, double *half_us);
/* Nothing is posted for so long, while the driving thread sleeps. */
int p2p_idle(struct p2p *p2p, double window_s, struct traffic_window *out);
void p2p_destroy(struct p2p *p2p);

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
