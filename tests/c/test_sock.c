/* SPDX-License-Identifier: MIT
 *
 * The send buffer that a path wants, and that the kernel takes it and takes it back.
 */
#include "sock.h"

#include <errno.h>

#include "check.h"
#include "counters.h"

static void test_path_rule(void)
{
	const uint64_t gb = 1000000000;

	check_int(bnet_sndbuf_for_path(10, 1 * gb, false), 128 * 1024);   /* the floor */
	check_int(bnet_sndbuf_for_path(10, 5 * gb, false), 128 * 1024);
	check_int(bnet_sndbuf_for_path(100, 12 * gb, false), 2400000 / 131072 * 131072 + 131072); /* 100 Gb/s, 100 µs */
	check_int(bnet_sndbuf_for_path(300, gb, false), 655360);
	check_int(bnet_sndbuf_for_path(301, gb, false), 0);               /* long: the kernel's own sizing */
	check_int(bnet_sndbuf_for_path(20000, 100 * gb, true), 0);
	check_int(bnet_sndbuf_for_path(0, 0, false), 128 * 1024);
	check_int(bnet_sndbuf_for_path(0, 0, true), 1024 * 1024);         /* ranks that take turns */
	check_int(bnet_sndbuf_for_path(100, 12 * gb, true), 2400000 / 131072 * 131072 + 131072);
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
	int fd = bnet_sock_open(AF_INET);

	check(fd >= 0);
	check_int(bnet_config_read(&config, err, sizeof(err)), 0);
	bnet_sock_tune(fd, &config);
	bnet_sock_set_sndbuf(fd, 128 * 1024);
	check_int(sndbuf(fd), 2 * 128 * 1024); /* the kernel doubles it for its own overhead */
	bnet_sock_set_sndbuf(fd, 0);           /* must not fail, whatever the kernel knows */
	check_int(atomic_load(&bnet_counts.descriptors), 1);
	bnet_sock_close(fd);
	check_int(atomic_load(&bnet_counts.descriptors), 0);
	bnet_sock_close(-1);
	check_int(atomic_load(&bnet_counts.descriptors), 0);
	check_int(bnet_sock_open(-5), -EAFNOSUPPORT);
}

static void test_listen_range(void)
{
	struct bnet_device_table table;
	struct sockaddr_storage one, two;
	struct bnet_ports any = {0, 0}, range;
	int a, b;

	check_int(bnet_device_scan(&table, "=lo", NULL), 0);
	a = bnet_sock_listen(&table.devices[0], any, &one);
	check(a >= 0);
	/* A range of the one port that is taken: refused, not another port. */
	range.first = range.last = (uint16_t)(((uint8_t *)&one)[2] << 8 | ((uint8_t *)&one)[3]);
	b = bnet_sock_listen(&table.devices[0], range, &two);
	check_int(b, -EADDRINUSE);
	bnet_sock_close(a);
	b = bnet_sock_listen(&table.devices[0], range, &two);
	check(b >= 0);
	check_int(memcmp(&one, &two, bnet_sockaddr_size(&one)), 0);
	bnet_sock_close(b);
}

int main(void)
{
	test_path_rule();
	test_options();
	test_listen_range();
	return 0;
}
