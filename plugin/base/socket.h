/* SPDX-License-Identifier: MIT
 *
 * Sockets as the plugin uses them: non-blocking, close-on-exec, counted, with the options of a data stream. Any
 * thread; no state. An option that the kernel lacks is skipped without an error.
 */
#ifndef BNET_SOCKET_H
#define BNET_SOCKET_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#include "base/config.h"
#include "base/descriptors.h"

/* Return a descriptor or -errno. bnet_socket_close closes all of them. */
int bnet_socket_open(int family);
int bnet_socket_accept(int listener, struct sockaddr_storage *peer);
/* Listens at the address `at`, ignoring its port, on the first free port of the range. */
int bnet_socket_listen(const struct sockaddr_storage *at, struct bnet_ports ports, struct sockaddr_storage *bound);
void bnet_socket_close(int fd);

/* Binds to a source address and, unless NULL, to an interface. 0 or -errno. */
int bnet_socket_bind_source(int fd, const struct sockaddr_storage *source, const char *interface);
/* 0: connected. -EINPROGRESS; -EADDRINUSE: no port of this host is left for it; or another -errno. */
int bnet_socket_connect(int fd, const struct sockaddr_storage *addr);
/* Was the connection reset, given up by the kernel, or refused? */
bool bnet_socket_is_closed(int fd);
/* … or has the peer's end been closed? Of a sender's socket: its peer, which lives, closes it after this end. */
bool bnet_socket_is_left(int fd);
/* … and why: -errno. It is told once: 0 after that. Also 0 while the connection lives: there SO_ERROR is no end, but the
 * last ICMP error, as a firewall's, after which the kernel goes on. */
int bnet_socket_error(int fd);
/* Bytes that this end's kernel has received over the connection's lifetime; 0 if it does not report them. */
uint64_t bnet_socket_received(int fd);
/* Has the peer's kernel acknowledged everything written, including a FIN? */
bool bnet_socket_all_acknowledged(int fd);
/* Is this error of a call the connection's end? Others, as of memory that is no more, leave it as it was. */
bool bnet_socket_has_ended(int fd, int error);
/* For so many milliseconds nothing has come from the peer's kernel, not even the answer to a probe of this one. */
uint32_t bnet_socket_unheard_ms(int fd);
/* Turns off delayed acknowledgements for about the next dozen segments. After an exchange such as HELLO and WELCOME the
 * kernel treats the connection as interactive and delays them, so that replies can carry them. */
void bnet_socket_acknowledge_at_once(int fd);
/* Resets the connection and leaves the descriptor open. */
void bnet_socket_reset(int fd);
/* Sets the options of a data stream, before or after its connect. traffic_class: 0 to 255, the traffic class byte of
 * the IP header; its two low bits, ECN, belong to the kernel. BNET_NO_TRAFFIC_CLASS keeps the system's default. */
#define BNET_NO_TRAFFIC_CLASS (-1)
void bnet_socket_tune(int fd, const struct bnet_config *config, int traffic_class);
/* The congestion control of a stream after its connect: BAGUA_NET_CONGESTION; else reno for a stream within this host,
 * since nothing congests there, and bbr, where it is the system's choice, paces by timers, which costs up to 40 % of
 * the rate; else the system's. */
void bnet_socket_choose_congestion(int fd, const struct bnet_config *config, bool local);
/* Is it bbr, in any of its versions? */
bool bnet_socket_uses_bbr(int fd);
/* BAGUA_NET_KEEPALIVE as the kernel's options: after idle_s without a packet from the peer the kernel sends a probe,
 * then one every interval_s, and ends the connection interval_s after the last of `probes`. Together that is `seconds`,
 * but at least two. Pure. */
struct bnet_keepalive {
	int idle_s;
	int interval_s;
	int probes;
};
struct bnet_keepalive bnet_keepalive_for(int64_t seconds);
/* May this process use that congestion control? 0 or -errno: -ENOENT, the kernel does not have it; -EPERM, the process
 * is not permitted. */
int bnet_socket_try_congestion(int family, const char *name);
/* The names that are "available" in the kernel or "allowed" to every process; "unknown" if it does not list them. */
#define BNET_CONGESTIONS 256
void bnet_socket_congestions(const char *which, char text[BNET_CONGESTIONS]);

/* The send buffer for a path: bytes for SO_SNDBUF, or 0 for the kernel's autotuning. Pure. On a short round trip the
 * processor is the limit, and a small buffer keeps the data in its cache. A long round trip needs many bytes in flight,
 * and each loss keeps them for another one: the largest buffer there is, which is either `most`, of which the kernel
 * makes twice as much for its own overhead, or what its autotuning ends with. rate: bytes/s. */
#define BNET_SHORT_RTT_US 300
#define BNET_SNDBUF_MIN (128 * 1024)
int64_t bnet_sndbuf_for_path(uint32_t min_rtt_us, uint64_t rate, int64_t most, int64_t tuned);
/* What replaces a send buffer of `now` bytes where a path wants `want`; 0: the kernel's autotuning. Pure. Nothing above
 * `most`, which the kernel would cut down. Twice the product is wanted, so a buffer that is a third too small still
 * fills the path, and one that is twice too large is still small: what lies in between changes nothing. */
int64_t bnet_sndbuf_change(int64_t now, int64_t want, int64_t most);
/* The largest size that may be set, as net.core.wmem_max says; 0: none may, since this kernel could not take it back
 * (before Linux 5.15). Asks the kernel once. */
int64_t bnet_sndbuf_most(void);
/* What autotuning ends with, overhead included: net.ipv4.tcp_wmem. INT64_MAX: not known. Asks the kernel once. */
int64_t bnet_sndbuf_tuned(void);
/* Sets SO_SNDBUF, up to bnet_sndbuf_most; 0 restores the kernel's autotuning. */
void bnet_socket_set_sndbuf(int fd, int64_t bytes);

#endif
