/* SPDX-License-Identifier: MIT
 *
 * A socket has its congestion control before it connects: what bbr sets up for its pacing, and dctcp for its marks,
 * when a connection begins, stays whatever is chosen later. Runs in a network namespace of its own, whose default
 * differs; skipped where that is not permitted, or where the kernel has no other.
 */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "bagua_net.h"
#include "oneself.h"

#define SKIPPED 77
#define DEADLINE_S 250
#define CONTROLS "/proc/sys/net/ipv4/tcp_"

/* ---- interposed ---- */

static _Atomic int connects, others;
static const char *expected;

int connect(int fd, const struct sockaddr *addr, socklen_t size)
{
	char name[16] = "";
	socklen_t length = sizeof(name) - 1;

	if (addr->sa_family == AF_INET && getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, &length) == 0) {
		atomic_fetch_add(&connects, 1);
		atomic_fetch_add(&others, strcmp(name, expected) != 0);
	}
	return (int)syscall(SYS_connect, fd, addr, size);
}

/* ---- the default ---- */

static void read_text(const char *path, char *text, size_t size)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : read(fd, text, size - 1);

	check(n > 0);
	text[n] = '\0';
	text[strcspn(text, "\n")] = '\0';
	close(fd);
}

static void make_default(const char *name)
{
	int fd = open(CONTROLS "congestion_control", O_WRONLY | O_CLOEXEC);

	check(fd >= 0 && write(fd, name, strlen(name)) == (ssize_t)strlen(name));
	close(fd);
}

/* Another than reno. False: the kernel has none. */
static bool find_another(char *name, size_t size)
{
	char all[256];

	read_text(CONTROLS "available_congestion_control", all, sizeof(all));
	for (char *word = strtok(all, " "); word; word = strtok(NULL, " ")) {
		if (strcmp(word, "reno") == 0)
			continue;
		snprintf(name, size, "%s", word);
		return true;
	}
	return false;
}

/* ---- the test ---- */

static void connect_with(const char *congestion)
{
	struct bnet_client client;

	atomic_store(&connects, 0);
	expected = congestion;
	check_int(bnet_client_init(&client, bnet_net_table(12), 12, print_warnings), ncclSuccess);
	close_to_oneself(&client, connect_to_oneself(&client));
	check_int(bnet_client_finalize(&client), ncclSuccess);
	check(atomic_load(&connects) > 0);
	check_int(atomic_load(&others), 0);
}

int main(int argc, char **argv)
{
	char name[16];

	setenv("NCCL_SOCKET_IFNAME", "=lo", 1);
	setenv("NCCL_SOCKET_FAMILY", "AF_INET", 1);
	alarm(DEADLINE_S);
	if (argc > 1) { /* the parameters are read once */
		connect_with(argv[1]);
		return 0;
	}
	if (unshare(CLONE_NEWNET) || system("ip link set lo up") != 0) {
		fprintf(stderr, "skipped: no network namespace: %s\n", strerror(errno));
		return SKIPPED;
	}
	if (!find_another(name, sizeof(name))) {
		fprintf(stderr, "skipped: this kernel has reno alone\n");
		return SKIPPED;
	}
	make_default(name);
	connect_with("reno");
	make_default("reno");
	setenv("BAGUA_NET_CONGESTION", name, 1);
	execl(argv[0], argv[0], name, (char *)NULL);
	return 1;
}
