/* SPDX-License-Identifier: MIT
 *
 * Sockets as the plugin uses them: non-blocking, close-on-exec, counted, with the options of a data stream. Any
 * thread; no state. An option that a kernel lacks is left out, it is no error.
 */
#ifndef BNET_SOCKET_H
#define BNET_SOCKET_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

#include "base/config.h"

/* A descriptor, or -errno. Every one is closed by bnet_socket_close. */
int bnet_socket_open(int family);
int bnet_socket_accept(int listener, struct sockaddr_storage *peer);
/* Listens on the address `at`, whose port is ignored, on the first free port of the range. */
int bnet_socket_listen(const struct sockaddr_storage *at, struct bnet_ports ports, struct sockaddr_storage *bound);
void bnet_socket_close(int fd);
/* Counts a descriptor that was opened elsewhere (epoll, eventfd), and closes it. */
int bnet_fd_opened(int fd);

/* Binds to a source address and, unless NULL, to an interface. 0 or -errno. */
int bnet_socket_bind_source(int fd, const struct sockaddr_storage *source, const char *interface);
/* 0: connected, -EINPROGRESS, or another -errno. */
int bnet_socket_connect(int fd, const struct sockaddr_storage *addr);
/* The error of a connect that has ended, as -errno. */
int bnet_socket_error(int fd);
/* Bytes that the peer has sent and this end's kernel has taken, since the beginning; 0 where it does not say. */
uint64_t bnet_socket_received(int fd);
/* The peer's kernel has everything that was written, also the end if that was. */
bool bnet_socket_all_acknowledged(int fd);
/* The next dozen or so of segments are acknowledged without waiting for more. A question and an answer, as HELLO and
 * WELCOME, make the kernel take the connection for one where answers carry the acknowledgements. */
void bnet_socket_acknowledge_at_once(int fd);
/* Ends the connection with a reset, and leaves the descriptor open. */
void bnet_socket_reset(int fd);
/* Does the process have descriptors to spare? Streams beyond the first, and rejected, stop at half of its limit: the
 * other half is the job's. */
bool bnet_descriptors_left(void);
uint64_t bnet_descriptor_limit(void);
/* The options of a data stream. traffic_class: 0 to 255, the byte of each packet's IP header of which the kernel keeps
 * the low two bits, ECN, for itself; BNET_NO_TRAFFIC_CLASS leaves the system's. */
#define BNET_NO_TRAFFIC_CLASS (-1)
void bnet_socket_tune(int fd, const struct bnet_config *config, int traffic_class);
/* May a socket of this process have that congestion control? 0 or -errno: -ENOENT, the kernel has none of that name;
 * -EPERM, the process may not. */
int bnet_socket_try_congestion(int family, const char *name);
/* The names that are "available" in the kernel, or "allowed" to every process; "unknown" where it does not say. */
#define BNET_CONGESTIONS 256
void bnet_socket_congestions(const char *which, char text[BNET_CONGESTIONS]);

/* The send buffer that a path wants: 0 for the kernel's own sizing, else bytes for SO_SNDBUF. Pure. A path with a short
 * round trip is limited by the processor, and a small buffer keeps the data in its cache; a long one needs many bytes
 * in flight. min_rtt in µs, rate in bytes/s. */
#define BNET_SHORT_RTT_US 300
#define BNET_SNDBUF_LEAST (128 * 1024)
/* … at the least where the ranks take turns on too few processors: one that waits for its turn finds more to read. */
#define BNET_SNDBUF_CONTENDED (1024 * 1024)
int64_t bnet_sndbuf_for_path(uint32_t min_rtt_us, uint64_t rate, bool contended);
/* Sets it; 0 gives the kernel its sizing back, and so does more than net.core.wmem_max grants. */
void bnet_socket_set_sndbuf(int fd, int64_t bytes);

#endif
