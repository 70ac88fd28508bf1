/* SPDX-License-Identifier: MIT
 *
 * The send buffer for a path, setting and resetting it; socket options of both families, and those that the default
 * configuration leaves unchanged.
 */
#include "base/socket.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>

#include "base/address.h"
#include "check.h"
#include "device/scan.h"
#include "base/counters.h"

enum { K = 1024, MOST = 208 * K, TUNED = 4096 * K };

static void test_path_rule(void)
{
	const uint64_t gb = 1000000000;

	check_int(bnet_sndbuf_for_path(10, 1 * gb, MOST, TUNED), 128 * 1024); /* the minimum */
	check_int(bnet_sndbuf_for_path(10, 5 * gb, MOST, TUNED), 128 * 1024);
	/* 100 Gb/s, 100 µs */
	check_int(bnet_sndbuf_for_path(100, 12 * gb, MOST, TUNED), 2400000 / 131072 * 131072 + 131072);
	check_int(bnet_sndbuf_for_path(300, gb, MOST, TUNED), 655360);
	check_int(bnet_sndbuf_for_path(0, 0, MOST, TUNED), 128 * 1024);
}

static void the_send_buffer_of_a_long_path_is_the_largest(void)
{
	check_int(bnet_sndbuf_for_path(301, 1, TUNED, TUNED), TUNED);
	check_int(bnet_sndbuf_for_path(20000, 1, TUNED / 2 + 1, TUNED), TUNED / 2 + 1);
	check_int(bnet_sndbuf_for_path(20000, 1, TUNED / 2, TUNED), 0); /* the kernel's autotuning ends with as much */
	check_int(bnet_sndbuf_for_path(20000, 1, MOST, TUNED), 0);
	check_int(bnet_sndbuf_for_path(20000, 1, TUNED, INT64_MAX), 0); /* not known */
	check(bnet_sndbuf_tuned() > 0);
}

static void test_changes_of_buffers(void)
{
	check_int(bnet_sndbuf_change(0, 128 * K, MOST), 128 * K);
	check_int(bnet_sndbuf_change(128 * K, 0, MOST), 0);
	check_int(bnet_sndbuf_change(128 * K, 256 * K, 4096 * K), 256 * K);
	check_int(bnet_sndbuf_change(128 * K, 256 * K, MOST), 0); /* rather the kernel's than a cut one */
	check_int(bnet_sndbuf_change(0, 256 * K, MOST), 0);
	check_int(bnet_sndbuf_change(512 * K, 640 * K, 4096 * K), 512 * K); /* small changes of the path */
	check_int(bnet_sndbuf_change(512 * K, 384 * K, 4096 * K), 512 * K);
	check_int(bnet_sndbuf_change(512 * K, 768 * K, 4096 * K), 768 * K);
	check_int(bnet_sndbuf_change(512 * K, 256 * K, 4096 * K), 256 * K);
	check_int(bnet_sndbuf_change(0, 128 * K, 0), 0); /* a kernel that cannot take it back */
	check(bnet_sndbuf_most() == 0 || bnet_sndbuf_most() >= 128 * K);
}

static int sndbuf(int fd)
{
	int value = 0;
	socklen_t size = sizeof(value);

	check_int(getsockopt(fd, SOL_SOCKET, SO_SNDBUF, &value, &size), 0);
	return value;
}

static void test_options(void)
{
	struct bnet_config config;
	char err[256];
	int fd = bnet_socket_open(AF_INET);

	check(fd >= 0);
	check_int(bnet_config_read(&config, err, sizeof(err)), 0);
	bnet_socket_tune(fd, &config, BNET_NO_TRAFFIC_CLASS);
	bnet_socket_set_sndbuf(fd, 128 * 1024);
	check_int(sndbuf(fd), 2 * 128 * 1024); /* the kernel doubles it for its own overhead */
	bnet_socket_set_sndbuf(fd, 0);         /* must not fail on any kernel */
	check_int(atomic_load(&bnet_counts.descriptors), 1);
	bnet_socket_close(fd);
	check_int(atomic_load(&bnet_counts.descriptors), 0);
	bnet_socket_close(-1);
	check_int(atomic_load(&bnet_counts.descriptors), 0);
	check_int(bnet_socket_open(-5), -EAFNOSUPPORT);
}

static int int_option(int fd, int level, int name)
{
	int value = -1;
	socklen_t size = sizeof(value);

	check_int(getsockopt(fd, level, name, &value, &size), 0);
	return value;
}

static const struct {
	int requested, effective;
} classes[] = {
	{BNET_NO_TRAFFIC_CLASS, 64}, {0, 0}, {104, 104}, {107, 104}, {255, 252},
};

static void test_traffic_class(int family, int level, int name)
{
	struct bnet_config config;
	int before = 64; /* stands for a system default */

	bnet_config_defaults(&config);
	for (size_t i = 0; i < sizeof(classes) / sizeof(classes[0]); i++) {
		int fd = bnet_socket_open(family);

		if (fd == -EAFNOSUPPORT)
			return; /* a kernel without IPv6 */
		check_int(setsockopt(fd, level, name, &before, sizeof(before)), 0);
		bnet_socket_tune(fd, &config, classes[i].requested);
		check_int(int_option(fd, level, name), classes[i].effective);
		bnet_socket_close(fd);
	}
}

/* The kernel's time until it gives up an idle connection. */
static int keepalive_seconds(int fd)
{
	return int_option(fd, IPPROTO_TCP, TCP_KEEPIDLE) +
	       int_option(fd, IPPROTO_TCP, TCP_KEEPINTVL) * int_option(fd, IPPROTO_TCP, TCP_KEEPCNT);
}

static void test_keepalive(void)
{
	struct bnet_config config;
	struct bnet_keepalive usual = bnet_keepalive_for(30);

	check(usual.idle_s == 10 && usual.interval_s == 5 && usual.probes == 4);
	usual = bnet_keepalive_for(120); /* no rarer */
	check(usual.idle_s == 10 && usual.interval_s == 5 && usual.probes == 22);
	bnet_config_defaults(&config);
	for (int seconds = 0; seconds <= 240; seconds++) {
		int fd = bnet_socket_open(AF_INET);

		config.keepalive = seconds;
		bnet_socket_tune(fd, &config, BNET_NO_TRAFFIC_CLASS);
		check_int(int_option(fd, SOL_SOCKET, SO_KEEPALIVE), seconds > 0);
		if (seconds > 0)
			check(keepalive_seconds(fd) <= (seconds < 2 ? 2 : seconds) &&
			      keepalive_seconds(fd) > seconds - (seconds < 6 ? 1 : seconds / 6));
		bnet_socket_close(fd);
	}
}

static uint64_t pacing(int64_t mbps)
{
	struct bnet_config config;
	uint64_t rate = 0;
	socklen_t size = sizeof(rate);
	int fd = bnet_socket_open(AF_INET);

	bnet_config_defaults(&config);
	config.stream_pacing_mbps = mbps;
	bnet_socket_tune(fd, &config, BNET_NO_TRAFFIC_CLASS);
	check_int(getsockopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &rate, &size), 0);
	bnet_socket_close(fd);
	return size == sizeof(rate) || rate < UINT32_MAX ? rate : UINT64_MAX; /* 32 bits before Linux 5.0 */
}

static void test_pacing(void)
{
	check(pacing(0) == UINT64_MAX); /* no limit */
	check(pacing(1) == 125000);
	check(pacing(34359) == UINT64_C(34359) * 125000);
	check(pacing(400000) == UINT64_C(400000) * 125000 || pacing(400000) == UINT64_MAX);
}

static void test_congestion(void)
{
	char names[BNET_CONGESTIONS];

	check_int(bnet_socket_try_congestion(AF_INET, "reno"), 0);
	check_int(bnet_socket_try_congestion(AF_INET, "no-such_one"), -ENOENT);
	check_int(atomic_load(&bnet_counts.descriptors), 0);
	bnet_socket_congestions("available", names);
	check(strstr(names, "reno") && !strchr(names, '\n'));
	bnet_socket_congestions("imagined", names);
	check_str(names, "unknown");
}

static void test_listen_range(void)
{
	struct bnet_device_table table;
	struct sockaddr_storage one, two;
	struct bnet_ports any = {0, 0}, range;
	int a, b;

	check_int(bnet_device_scan(&table, &(struct bnet_choice){.ifname = "=lo"}), 0);
	a = bnet_socket_listen(&table.nics[0].addr, any, &one);
	check(a >= 0);
	/* A range of one port, which is in use, fails instead of using another port. */
	range.first = range.last = (uint16_t)(((uint8_t *)&one)[2] << 8 | ((uint8_t *)&one)[3]);
	b = bnet_socket_listen(&table.nics[0].addr, range, &two);
	check_int(b, -EADDRINUSE);
	bnet_socket_close(a);
	b = bnet_socket_listen(&table.nics[0].addr, range, &two);
	check(b >= 0);
	check_int(memcmp(&one, &two, bnet_address_size(&one)), 0);
	bnet_socket_close(b);
}

int main(void)
{
	test_path_rule();
	the_send_buffer_of_a_long_path_is_the_largest();
	test_options();
	test_traffic_class(AF_INET, IPPROTO_IP, IP_TOS);
	test_traffic_class(AF_INET6, IPPROTO_IPV6, IPV6_TCLASS);
	test_changes_of_buffers();
	test_keepalive();
	test_pacing();
	test_congestion();
	test_listen_range();
	return 0;
}
