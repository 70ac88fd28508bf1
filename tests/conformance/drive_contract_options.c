/* SPDX-License-Identifier: MIT
 *
 * Scenarios about socket options, read back from every socket of a connection: traffic class, congestion control,
 * pacing.
 */
#include "drive_contract.h"

#include <errno.h>
#include <limits.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define STREAMS 4
#define MIB ((size_t)1 << 20)

/* ---- the sockets of this process ---- */

struct end { /* of a stream */
	int fd;
	int family;
	uint16_t port; /* its own */
	bool accepted;
};

static int option(int fd, int level, int name)
{
	int value = -1;
	socklen_t size = sizeof(value);

	return getsockopt(fd, level, name, &value, &size) == 0 ? value : -1;
}

static bool is_tcp(int fd)
{
	int family = option(fd, SOL_SOCKET, SO_DOMAIN);

	return (family == AF_INET || family == AF_INET6) && option(fd, SOL_SOCKET, SO_PROTOCOL) == IPPROTO_TCP;
}

/* 0: the descriptor has been closed since. Both families have the port at the same offset. */
static uint16_t local_port(int fd)
{
	struct sockaddr_in6 address;
	socklen_t size = sizeof(address);

	return getsockname(fd, (struct sockaddr *)&address, &size) == 0 ? address.sin6_port : 0;
}

static bool is_connected(int fd)
{
	struct sockaddr_storage address;
	socklen_t size = sizeof(address);

	return getpeername(fd, (struct sockaddr *)&address, &size) == 0;
}

#define MOST_ENDS 64

/* The process's connected TCP sockets; those with its listener's port were accepted. The control thread may close some
 * meanwhile. */
static int find_ends(struct end ends[MOST_ENDS])
{
	DIR *directory = opendir("/proc/self/fd");
	uint16_t listener = 0;
	int count = 0;

	drive_check(directory, "/proc/self/fd: %m");
	for (struct dirent *entry = readdir(directory); entry; entry = readdir(directory)) {
		int fd = atoi(entry->d_name);

		if (!is_tcp(fd))
			continue;
		if (option(fd, SOL_SOCKET, SO_ACCEPTCONN) == 1)
			listener = local_port(fd);
		else if (is_connected(fd) && count < MOST_ENDS)
			ends[count++] = (struct end){.fd = fd,
						     .family = option(fd, SOL_SOCKET, SO_DOMAIN),
						     .port = local_port(fd)};
	}
	closedir(directory);
	for (int i = 0; i < count; i++)
		ends[i].accepted = ends[i].port == listener;
	return count;
}

/* ---- a connection with all its streams ---- */

/* Both ends of every stream, once the last one has joined and all of them have carried data. */
static void all_ends(struct contract *c, struct pair pair, struct end ends[MOST_ENDS])
{
	int connecting = 0, accepted = 0, count;

	while (contract_counters(c).streams < 2 * STREAMS)
		contract_exchange(c, pair, MIB);
	contract_exchange(c, pair, MIB);
	count = find_ends(ends);
	for (int i = 0; i < count; i++) {
		accepted += ends[i].accepted;
		connecting += !ends[i].accepted;
	}
	drive_check(connecting == STREAMS && accepted == STREAMS,
		    "%d connecting and %d accepted sockets for %d streams", connecting, accepted, STREAMS);
}

static void close_all(struct contract *c, struct pair pair)
{
	struct end ends[MOST_ENDS];

	contract_close_pair(c, pair);
	while (find_ends(ends) > 0)
		contract_nap();
}

static void set_parameter(const char *name, const char *value)
{
	char streams[16];

	snprintf(streams, sizeof(streams), "%d", STREAMS);
	setenv("BAGUA_NET_MIN_NSTREAMS", streams, 1);
	setenv(name, value, 1);
}

static const char *kind_of(const struct end *end)
{
	return end->accepted ? "an accepted socket" : "a connecting socket";
}

/* ---- traffic class ---- */

#define PARAMETER 32 /* CS1 */

/* Without the two bits that the kernel keeps for ECN. */
static int class_of(const struct end *end)
{
	int value = end->family == AF_INET6 ? option(end->fd, IPPROTO_IPV6, IPV6_TCLASS)
					    : option(end->fd, IPPROTO_IP, IP_TOS);

	return value & ~3;
}

/* NCCL_SOCKET_FAMILY names the family that the scenario runs on. */
static void expect_family(const struct end *end)
{
	const char *wanted = getenv("NCCL_SOCKET_FAMILY");

	drive_check(!wanted || end->family == (strcmp(wanted, "AF_INET6") == 0 ? AF_INET6 : AF_INET),
		    "%s is of family %d, %s was asked for", kind_of(end), end->family, wanted);
}

/* Opens a connection of a communicator that asks for a class, and checks the class at both ends of its streams. */
static void expect_class(struct contract *c, int asked, int sending, int receiving)
{
	struct end ends[MOST_ENDS];
	struct pair pair;

	contract_load_class(c, asked);
	pair = contract_pair(c);
	all_ends(c, pair, ends);
	for (int i = 0; i < 2 * STREAMS; i++) {
		int wanted = ends[i].accepted ? receiving : sending;

		expect_family(&ends[i]);
		drive_check(class_of(&ends[i]) == wanted, "NCCL asks for class %d: %s has %d instead of %d", asked,
			    kind_of(&ends[i]), class_of(&ends[i]), wanted);
	}
	close_all(c, pair);
	contract_finalize(c);
}

/* NCCL's class wins over the parameter's; with either of NCCL's values for "unset" the parameter's applies. From v11 on
 * the class is the communicator's. v10 passes it to connect, so the receiving end does not know it. */
static void traffic_class(struct contract *c)
{
	static const struct {
		int asked, carried;
	} cases[] = {
		{104, 104},           {0, 0},     {255, 252}, {NCCL_NET_TRAFFIC_CLASS_UNDEF, PARAMETER},
		{INT_MIN, PARAMETER}, {184, 184},
	};

	set_parameter("BAGUA_NET_TRAFFIC_CLASS", "32");
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		expect_class(c, cases[i].asked, cases[i].carried, c->source.api >= 11 ? cases[i].carried : PARAMETER);
	drive_check(drive_log_count(NCCL_LOG_WARN) == 0, "a valid class is warned of");
}

/* A class that does not fit into a byte costs one line, and the parameter's applies. */
static void traffic_class_refused(struct contract *c)
{
	set_parameter("BAGUA_NET_TRAFFIC_CLASS", "32");
	expect_class(c, 256, PARAMETER, PARAMETER);
	drive_check(drive_log_has(NCCL_LOG_WARN, "trafficClass=256", "255"),
		    "no warning names the value and the range");
	expect_class(c, -2, PARAMETER, PARAMETER);
	drive_check(drive_log_count(NCCL_LOG_WARN) == 1, "%d warnings, 1 was expected", drive_log_count(NCCL_LOG_WARN));
}

static void traffic_class_parameter(struct contract *c)
{
	set_parameter("BAGUA_NET_TRAFFIC_CLASS", "32");
	expect_class(c, NCCL_NET_TRAFFIC_CLASS_UNDEF, PARAMETER, PARAMETER);
}

/* ---- congestion control ---- */

static void expect_congestion(const struct end *end, const char *wanted)
{
	char name[16] = "";
	socklen_t size = sizeof(name);

	if (getsockopt(end->fd, IPPROTO_TCP, TCP_CONGESTION, name, &size) != 0)
		drive_fail("TCP_CONGESTION: %m");
	drive_check(strcmp(name, wanted) == 0, "%s has %s instead of %s", kind_of(end), name, wanted);
}

static void expect_congestion_of_pair(struct contract *c, const char *connecting, const char *accepted)
{
	struct pair pair = contract_pair(c);
	struct end ends[MOST_ENDS];

	all_ends(c, pair, ends);
	for (int i = 0; i < 2 * STREAMS; i++)
		expect_congestion(&ends[i], ends[i].accepted ? accepted : connecting);
	close_all(c, pair);
}

static void read_sysctl(const char *name, char *text, size_t size)
{
	char path[128];
	FILE *file;

	snprintf(path, sizeof(path), "/proc/sys/net/ipv4/%s", name);
	file = fopen(path, "re");
	if (!file || !fgets(text, (int)size, file))
		drive_fail("%s: %m", path);
	fclose(file);
	text[strcspn(text, "\n")] = '\0';
}

/* One that this process may use, other than its default if possible; every kernel has reno. */
static void choose_congestion(char *name, size_t size)
{
	char ours[64], allowed[256];

	read_sysctl("tcp_congestion_control", ours, sizeof(ours));
	read_sysctl("tcp_allowed_congestion_control", allowed, sizeof(allowed));
	snprintf(name, size, "reno");
	for (char *word = strtok(allowed, " "); word; word = strtok(NULL, " "))
		if (strcmp(word, ours) != 0)
			snprintf(name, size, "%s", word);
}

static void congestion(struct contract *c)
{
	char name[64];

	choose_congestion(name, sizeof(name));
	set_parameter("BAGUA_NET_CONGESTION", name);
	contract_load(c);
	expect_congestion_of_pair(c, name, name);
	contract_finalize(c);
	drive_check(drive_log_count(NCCL_LOG_WARN) == 0, "%s is warned of", name);
}

/* Within one host nothing congests, and reno, unlike bbr, is never paced. */
static void congestion_within_host(struct contract *c)
{
	char ours[64];

	read_sysctl("tcp_congestion_control", ours, sizeof(ours));
	set_parameter("BAGUA_NET_CONGESTION", "");
	contract_load(c);
	expect_congestion_of_pair(c, "reno", ours);
	contract_finalize(c);
}

/* One line for the process, however many connections it opens, and the setting counts as empty. */
static void congestion_unknown(struct contract *c)
{
	char ours[64], available[256];

	read_sysctl("tcp_congestion_control", ours, sizeof(ours));
	read_sysctl("tcp_available_congestion_control", available, sizeof(available));
	set_parameter("BAGUA_NET_CONGESTION", "no-such_one");
	for (int i = 0; i < 2; i++) {
		contract_load(c);
		expect_congestion_of_pair(c, "reno", ours);
		contract_finalize(c);
	}
	drive_check(drive_log_has(NCCL_LOG_WARN, "BAGUA_NET_CONGESTION=no-such_one", available),
		    "no warning names the variable, its value and what is available");
	drive_check(drive_log_count(NCCL_LOG_WARN) == 1, "%d warnings, 1 was expected", drive_log_count(NCCL_LOG_WARN));
}

/* ---- pacing ---- */

#define MBPS 100000
#define RATE (UINT64_C(125000) * MBPS) /* more than 32 bits hold: kernels before 5.0 have no limit that high */

static void pacing(struct contract *c)
{
	struct end ends[MOST_ENDS];
	struct pair pair;
	char mbps[16];

	snprintf(mbps, sizeof(mbps), "%d", MBPS);
	set_parameter("BAGUA_NET_STREAM_PACING_MBPS", mbps);
	contract_load(c);
	pair = contract_pair(c);
	all_ends(c, pair, ends);
	for (int i = 0; i < 2 * STREAMS; i++) {
		uint64_t rate = 0;
		socklen_t size = sizeof(rate);

		if (getsockopt(ends[i].fd, SOL_SOCKET, SO_MAX_PACING_RATE, &rate, &size) != 0)
			drive_fail("SO_MAX_PACING_RATE: %m");
		drive_check(rate == (size == sizeof(rate) ? RATE : UINT32_MAX), "%s is paced at %llu bytes/s",
			    kind_of(&ends[i]), (unsigned long long)rate);
	}
	close_all(c, pair);
	contract_finalize(c);
}

const struct scenario contract_options_scenarios[] = {
	{"traffic_class", traffic_class, NULL, 10},
	{"traffic_class_refused", traffic_class_refused, NULL, 10},
	{"traffic_class_parameter", traffic_class_parameter, NULL, 0},
	{"congestion", congestion, NULL, 0},
	{"congestion_within_host", congestion_within_host, NULL, 0},
	{"congestion_unknown", congestion_unknown, NULL, 0},
	{"pacing", pacing, NULL, 0},
	{NULL, NULL, NULL, 0},
};
