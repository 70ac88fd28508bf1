/* SPDX-License-Identifier: MIT
 *
 * Socket calls and options; see socket.h. Any thread.
 */
#include "base/socket.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/address.h"
#include "base/counters.h"
#include "base/tcp_info.h"

/* Of kernels that are newer than a toolchain's headers may be. */
#ifndef SO_BUF_LOCK
#define SO_BUF_LOCK 72
#endif
#ifndef IP_BIND_ADDRESS_NO_PORT
#define IP_BIND_ADDRESS_NO_PORT 24
#endif
#ifndef SO_MAX_PACING_RATE
#define SO_MAX_PACING_RATE 47
#endif
#ifndef TCP_NOTSENT_LOWAT
#define TCP_NOTSENT_LOWAT 25
#endif

#define LISTEN_BACKLOG 4096 /* the kernel caps it at somaxconn */
#define ECN_BITS 3
#define BYTES_PER_MBIT 125000

int bnet_socket_open(int family)
{
	return bnet_fd_opened(socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
}

int bnet_socket_accept(int listener, struct sockaddr_storage *peer)
{
	socklen_t size = sizeof(*peer);

	return bnet_fd_opened(accept4(listener, (struct sockaddr *)peer, &size, SOCK_NONBLOCK | SOCK_CLOEXEC));
}

void bnet_socket_close(int fd)
{
	if (fd < 0)
		return;
	close(fd);
	bnet_count(descriptors, -1);
}

static void set_port(struct sockaddr_storage *addr, uint16_t port)
{
	if (addr->ss_family == AF_INET6)
		((struct sockaddr_in6 *)addr)->sin6_port = htons(port);
	else
		((struct sockaddr_in *)addr)->sin_port = htons(port);
}

static int listen_on(struct sockaddr_storage *addr, uint16_t port)
{
	int one = 1, rc = 0, fd = bnet_socket_open(addr->ss_family);

	if (fd < 0)
		return fd;
	/* Otherwise connections of the last job in TIME_WAIT use up a port range. */
	if (port)
		setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	set_port(addr, port);
	if (bind(fd, (struct sockaddr *)addr, bnet_address_size(addr)) < 0 || listen(fd, LISTEN_BACKLOG) < 0)
		rc = -errno;
	if (rc < 0) {
		bnet_socket_close(fd);
		return rc;
	}
	return fd;
}

int bnet_socket_listen(const struct sockaddr_storage *at, struct bnet_ports ports, struct sockaddr_storage *bound)
{
	struct sockaddr_storage addr = *at;
	socklen_t size = sizeof(*bound);
	int fd = -EADDRINUSE;

	/* With SO_REUSEADDR two sockets may bind one port while neither listens: only listen detects the conflict. */
	for (uint32_t port = ports.first; port <= ports.last && fd == -EADDRINUSE; port++)
		fd = listen_on(&addr, (uint16_t)port);
	if (fd >= 0 && getsockname(fd, (struct sockaddr *)bound, &size) < 0) {
		int rc = -errno;

		bnet_socket_close(fd);
		return rc;
	}
	return fd;
}

int bnet_socket_bind_source(int fd, const struct sockaddr_storage *source, const char *interface)
{
	struct sockaddr_storage addr = *source;
	int one = 1;

	/* The kernel then picks the port at connect, where only the 4-tuple must be unique: ports do not run out. */
	setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &one, sizeof(one));
	set_port(&addr, 0);
	if (bind(fd, (struct sockaddr *)&addr, bnet_address_size(&addr)) < 0)
		return -errno;
	if (!interface)
		return 0;
	if (setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, interface, (socklen_t)strlen(interface)) < 0 && errno != EPERM)
		return -errno;
	return 0;
}

static bool has_source(int fd)
{
	struct sockaddr_storage own;
	socklen_t size = sizeof(own);

	if (getsockname(fd, (struct sockaddr *)&own, &size) < 0)
		return false;
	if (own.ss_family == AF_INET6)
		return !IN6_IS_ADDR_UNSPECIFIED(&((struct sockaddr_in6 *)&own)->sin6_addr);
	return ((struct sockaddr_in *)&own)->sin_addr.s_addr != htonl(INADDR_ANY);
}

/* The kernel has one error for the lack of an address and for that of a port, and says at bind whether the address is
 * this host's. */
int bnet_socket_connect(int fd, const struct sockaddr_storage *addr)
{
	int rc = connect(fd, (const struct sockaddr *)addr, bnet_address_size(addr)) < 0 ? -errno : 0;

	return rc == -EADDRNOTAVAIL && has_source(fd) ? -EADDRINUSE : rc;
}

bool bnet_socket_is_closed(int fd)
{
	struct bnet_tcp_info info;

	return bnet_tcp_info_read(fd, &info, 1) && info.state == TCP_CLOSE;
}

bool bnet_socket_is_left(int fd)
{
	struct bnet_tcp_info info;

	return bnet_tcp_info_read(fd, &info, 1) && (info.state == TCP_CLOSE || info.state == TCP_CLOSE_WAIT);
}

/* False also where the kernel does not tell, as emulated ones. */
static bool lives(int fd)
{
	struct bnet_tcp_info info;

	return bnet_tcp_info_read(fd, &info, 1) && info.state != TCP_CLOSE;
}

int bnet_socket_error(int fd)
{
	int error = 0;
	socklen_t size = sizeof(error);

	if (lives(fd))
		return 0;
	return getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) < 0 ? -errno : -error;
}

uint64_t bnet_socket_received(int fd)
{
	struct bnet_tcp_info info;

	return bnet_tcp_info_read(fd, &info, offsetof(struct bnet_tcp_info, segs_out)) ? info.bytes_received : 0;
}

bool bnet_socket_all_acknowledged(int fd)
{
	int queued = 0;

	return ioctl(fd, SIOCOUTQ, &queued) < 0 || queued == 0;
}

void bnet_socket_acknowledge_at_once(int fd)
{
	int on = 1;

	setsockopt(fd, IPPROTO_TCP, TCP_QUICKACK, &on, sizeof(on));
}

bool bnet_socket_has_ended(int fd, int error)
{
	return error == -ECONNRESET || error == -EPIPE || error == -ETIMEDOUT || error == -ECONNABORTED ||
	       error == -EHOSTUNREACH || error == -ENETUNREACH || error == -ENETDOWN || bnet_socket_is_closed(fd);
}

uint32_t bnet_socket_unheard_ms(int fd)
{
	struct bnet_tcp_info info;

	if (!bnet_tcp_info_read(fd, &info, offsetof(struct bnet_tcp_info, pmtu)))
		return UINT32_MAX;
	return info.last_ack_received < info.last_data_received ? info.last_ack_received : info.last_data_received;
}

void bnet_socket_reset(int fd)
{
	struct sockaddr none = {.sa_family = AF_UNSPEC};

	/* Another thread may be inside send() on this descriptor, which the kernel serialises. ThreadSanitizer would
	 * report a race, since it takes connect() for the creation of the descriptor: hence the bare system call. */
	if (syscall(SYS_connect, fd, &none, sizeof(none)) < 0)
		shutdown(fd, SHUT_RDWR);
}

static void set_int(int fd, int level, int option, int64_t value)
{
	int v = (int)value;

	setsockopt(fd, level, option, &v, sizeof(v));
}

static void set_traffic_class(int fd, int value)
{
	int family = AF_INET;
	socklen_t size = sizeof(family);

	getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &family, &size);
	if (family == AF_INET6)
		set_int(fd, IPPROTO_IPV6, IPV6_TCLASS, value & ~ECN_BITS);
	else
		set_int(fd, IPPROTO_IP, IP_TOS, value & ~ECN_BITS);
}

/* The size of getsockopt's result tells the width of the rate: 64 bits since Linux 5.0. On an older kernel, a rate
 * above 32 bits means no limit. */
static void set_pacing(int fd, uint64_t bytes_per_second)
{
	uint64_t rate = 0;
	socklen_t size = sizeof(rate);

	if (getsockopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &rate, &size) < 0)
		return;
	rate = bytes_per_second;
	if (size == sizeof(uint32_t) && rate > UINT32_MAX)
		rate = UINT32_MAX;
	setsockopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &rate, size);
}

static int set_congestion(int fd, const char *name)
{
	return setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, (socklen_t)strlen(name)) < 0 ? -errno : 0;
}

bool bnet_socket_uses_bbr(int fd)
{
	char name[16] = ""; /* TCP_CA_NAME_MAX */
	socklen_t size = sizeof(name) - 1;

	return getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &size) == 0 && strncmp(name, "bbr", 3) == 0;
}

void bnet_socket_choose_congestion(int fd, const struct bnet_config *config, bool local)
{
	if (config->congestion[0])
		set_congestion(fd, config->congestion);
	else if (local)
		set_congestion(fd, "reno");
}

/* Some firewalls forget a flow after 20 s without a packet: however long the limit is, probes are not rarer. */
#define LONGEST_IDLE_S 10
#define LONGEST_INTERVAL_S 5

static int between(int64_t least, int64_t value, int64_t most)
{
	return (int)(value < least ? least : value > most ? most : value);
}

/* Four probes at least, but for limits of a few seconds: as many lost packets in a row are no coincidence. */
struct bnet_keepalive bnet_keepalive_for(int64_t seconds)
{
	struct bnet_keepalive keepalive = {
		.idle_s = between(1, seconds / 3, LONGEST_IDLE_S),
		.interval_s = between(1, seconds / 6, LONGEST_INTERVAL_S),
	};

	keepalive.probes = ((int)seconds - keepalive.idle_s) / keepalive.interval_s;
	if (keepalive.probes < 1)
		keepalive.probes = 1;
	return keepalive;
}

/* The peer's kernel answers the probes, however long its process pauses. */
static void set_keepalive(int fd, int64_t seconds)
{
	const struct bnet_keepalive keepalive = bnet_keepalive_for(seconds);

	set_int(fd, IPPROTO_TCP, TCP_KEEPIDLE, keepalive.idle_s);
	set_int(fd, IPPROTO_TCP, TCP_KEEPINTVL, keepalive.interval_s);
	set_int(fd, IPPROTO_TCP, TCP_KEEPCNT, keepalive.probes);
	set_int(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
}

int bnet_socket_try_congestion(int family, const char *name)
{
	int rc, fd = bnet_socket_open(family);

	if (fd < 0)
		return fd;
	rc = set_congestion(fd, name);
	bnet_socket_close(fd);
	return rc;
}

void bnet_socket_congestions(const char *which, char text[BNET_CONGESTIONS])
{
	char path[80];
	ssize_t n = -1;
	int fd;

	snprintf(path, sizeof(path), "/proc/sys/net/ipv4/tcp_%s_congestion_control", which);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd >= 0) {
		n = read(fd, text, BNET_CONGESTIONS - 1);
		close(fd);
	}
	text[n > 0 ? n : 0] = '\0';
	text[strcspn(text, "\n")] = '\0';
	if (!text[0])
		snprintf(text, BNET_CONGESTIONS, "unknown");
}

void bnet_socket_tune(int fd, const struct bnet_config *config, int traffic_class)
{
	set_int(fd, IPPROTO_TCP, TCP_NODELAY, 1);
	if (config->keepalive)
		set_keepalive(fd, config->keepalive);
	if (config->stream_pacing_mbps)
		set_pacing(fd, (uint64_t)config->stream_pacing_mbps * BYTES_PER_MBIT);
	if (traffic_class != BNET_NO_TRAFFIC_CLASS)
		set_traffic_class(fd, traffic_class);
	if (config->notsent_lowat)
		set_int(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, config->notsent_lowat);
	if (config->rcvbuf)
		set_int(fd, SOL_SOCKET, SO_RCVBUF, config->rcvbuf);
	if (config->sndbuf)
		set_int(fd, SOL_SOCKET, SO_SNDBUF, config->sndbuf);
}

int64_t bnet_sndbuf_for_path(uint32_t min_rtt_us, uint64_t rate, int64_t most, int64_t tuned)
{
	uint64_t product = rate / 1000000 * min_rtt_us;
	uint64_t want;

	if (min_rtt_us > BNET_SHORT_RTT_US)
		return most > tuned / 2 ? most : 0;
	/* Two bandwidth-delay products, in steps of the minimum, so that small changes of the path have no effect. */
	want = (2 * product + BNET_SNDBUF_MIN - 1) / BNET_SNDBUF_MIN * BNET_SNDBUF_MIN;
	return want < BNET_SNDBUF_MIN ? BNET_SNDBUF_MIN : (int64_t)want;
}

int64_t bnet_sndbuf_change(int64_t now, int64_t want, int64_t most)
{
	if (want > most)
		want = 0;
	if (now == 0 || want == 0)
		return want;
	return 2 * want >= 3 * now || 2 * want <= now ? want : now;
}

static int64_t sndbuf_most;

/* A container may not see the sysctl, but the kernel cuts what is asked for, and reports twice what it grants. */
static void ask_sndbuf_most(void)
{
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), unlocked = 0, granted = 0;
	socklen_t size = sizeof(granted);

	if (fd < 0)
		return;
	set_int(fd, SOL_SOCKET, SO_SNDBUF, INT32_MAX / 2);
	if (setsockopt(fd, SOL_SOCKET, SO_BUF_LOCK, &unlocked, sizeof(unlocked)) == 0 &&
	    getsockopt(fd, SOL_SOCKET, SO_SNDBUF, &granted, &size) == 0)
		sndbuf_most = granted / 2;
	close(fd);
}

int64_t bnet_sndbuf_most(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, ask_sndbuf_most);
	return sndbuf_most;
}

static int64_t sndbuf_tuned = INT64_MAX;

static void ask_sndbuf_tuned(void)
{
	FILE *file = fopen("/proc/sys/net/ipv4/tcp_wmem", "re");
	long long most;

	if (!file)
		return;
	if (fscanf(file, "%*s %*s %lld", &most) == 1 && most > 0)
		sndbuf_tuned = most;
	fclose(file);
}

int64_t bnet_sndbuf_tuned(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, ask_sndbuf_tuned);
	return sndbuf_tuned;
}

void bnet_socket_set_sndbuf(int fd, int64_t bytes)
{
	if (bytes)
		set_int(fd, SOL_SOCKET, SO_SNDBUF, bytes);
	else
		set_int(fd, SOL_SOCKET, SO_BUF_LOCK, 0);
}
