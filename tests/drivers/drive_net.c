/* SPDX-License-Identifier: MIT
 *
 * Drives a network's table as NCCL's proxy does, between two, three or four processes, and checks every byte.
 * This file: options, and the hub, a single thread that starts the ranks, forwards connection handles between them,
 * and prints one JSON line when all have finished.
 */
#include "drive_net.h"

#include <errno.h>
#include <getopt.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- options ---- */

enum {
	OPT_LIB = 256,
	OPT_API,
	OPT_OFFSET,
	OPT_PATCH,
	OPT_PROCS,
	OPT_COMMS,
	OPT_CONNECTIONS,
	OPT_MESSAGES,
	OPT_SEED,
	OPT_MAX_SIZE,
	OPT_SIZES,
	OPT_OUTSTANDING,
	OPT_ORDER,
	OPT_LARGER,
	OPT_UNMAP,
	OPT_STAGGER,
	OPT_TOGETHER,
	OPT_VERBOSE,
	OPT_DEVICE,
	OPT_MERGE,
	OPT_DEADLINE,
	OPT_WRAP,
	OPT_RANK,
	OPT_CONTROL
};

static const struct option long_options[] = {
	{"lib", required_argument, NULL, OPT_LIB},
	{"api", required_argument, NULL, OPT_API},
	{"offset", required_argument, NULL, OPT_OFFSET}, /* of the table in the file, for NCCL's own transport */
	{"patch", required_argument, NULL, OPT_PATCH},   /* offset of a function to replace by "return 0" */
	{"procs", required_argument, NULL, OPT_PROCS},
	{"communicators", required_argument, NULL, OPT_COMMS},
	{"connections", required_argument, NULL, OPT_CONNECTIONS},
	{"messages", required_argument, NULL, OPT_MESSAGES},
	{"seed", required_argument, NULL, OPT_SEED},
	{"max-size", required_argument, NULL, OPT_MAX_SIZE},
	{"sizes", required_argument, NULL, OPT_SIZES}, /* a,b,c: used in turn, instead of random sizes */
	{"outstanding", required_argument, NULL, OPT_OUTSTANDING},
	{"order", required_argument, NULL, OPT_ORDER},
	{"posted-larger", no_argument, NULL, OPT_LARGER},
	{"unmap", no_argument, NULL, OPT_UNMAP},
	{"stagger", no_argument, NULL, OPT_STAGGER},   /* open connections while earlier ones move data */
	{"together", no_argument, NULL, OPT_TOGETHER}, /* no process ends before all have received everything */
	{"verbose", no_argument, NULL, OPT_VERBOSE},
	{"device", required_argument, NULL, OPT_DEVICE},
	{"merge", required_argument, NULL, OPT_MERGE}, /* merge the first N devices, as NCCL does */
	{"deadline", required_argument, NULL, OPT_DEADLINE},
	{"wrap", required_argument, NULL, OPT_WRAP}, /* RANK=COMMAND: that rank runs under the command */
	{"rank", required_argument, NULL, OPT_RANK},
	{"control", required_argument, NULL, OPT_CONTROL},
	{NULL, 0, NULL, 0},
};

static uint64_t number(const char *text, uint64_t min, uint64_t max)
{
	char *end;
	unsigned long long value;

	errno = 0;
	value = strtoull(text, &end, 0);
	if (errno || end == text || *end || value < min || value > max)
		drive_fail("%s: not a number from %llu to %llu", text, (unsigned long long)min,
			   (unsigned long long)max);
	return value;
}

static enum net_order order_named(const char *text)
{
	static const char *const names[] = {"oldest", "random", "reverse"};

	for (int i = 0; i < 3; i++)
		if (strcmp(text, names[i]) == 0)
			return (enum net_order)i;
	drive_fail("--order %s: oldest, random or reverse", text);
}

static void parse_sizes(struct net_options *options, const char *list)
{
	char *rest = NULL, *text = strdup(list); /* the ranks get the unchanged list */

	drive_check(text, "out of memory");
	for (char *word = strtok_r(text, ",", &rest); word; word = strtok_r(NULL, ",", &rest)) {
		drive_check(options->nsizes < NET_MAX_SIZES, "--sizes: more than %d", NET_MAX_SIZES);
		options->sizes[options->nsizes++] = number(word, 0, UINT64_C(1) << 30);
	}
	free(text);
}

static void parse_wrap(struct net_options *options, const char *text)
{
	drive_check(text[0] >= '0' && text[0] < '0' + NET_MAX_PROCS && text[1] == '=', "--wrap %s: RANK=COMMAND", text);
	options->wrap[text[0] - '0'] = text + 2;
}

static void set_option(struct net_options *options, int option, const char *value)
{
	switch (option) {
	case OPT_LIB:
		options->source.path = value;
		break;
	case OPT_API:
		options->source.api = (int)number(value, 4, 12);
		break;
	case OPT_OFFSET:
		options->source.table_offset = number(value, 1, UINT64_MAX);
		break;
	case OPT_PATCH:
		drive_check(options->source.npatches < DRIVE_MAX_PATCHES, "more than %d --patch", DRIVE_MAX_PATCHES);
		options->source.patch[options->source.npatches++] = number(value, 1, UINT64_MAX);
		break;
	case OPT_PROCS:
		options->procs = (int)number(value, 2, NET_MAX_PROCS);
		break;
	case OPT_COMMS:
		options->communicators = (int)number(value, 1, 16);
		break;
	case OPT_CONNECTIONS:
		options->connections = (int)number(value, 1, NET_MAX_CONNECTIONS);
		break;
	case OPT_MESSAGES:
		options->messages = (int)number(value, 0, 100000000);
		break;
	case OPT_SEED:
		options->seed = number(value, 0, UINT64_MAX);
		break;
	case OPT_MAX_SIZE:
		options->max_size = number(value, 0, UINT64_C(1) << 30);
		break;
	case OPT_SIZES:
		parse_sizes(options, value);
		break;
	case OPT_OUTSTANDING:
		options->outstanding = (int)number(value, 1, NCCL_NET_MAX_REQUESTS);
		break;
	case OPT_ORDER:
		options->order = order_named(value);
		break;
	case OPT_LARGER:
		options->posted_larger = true;
		break;
	case OPT_UNMAP:
		options->unmap = true;
		break;
	case OPT_STAGGER:
		options->stagger = true;
		break;
	case OPT_TOGETHER:
		options->together = true;
		break;
	case OPT_VERBOSE:
		options->verbose = true;
		break;
	case OPT_DEVICE:
		options->device = (int)number(value, 0, 1000);
		break;
	case OPT_MERGE:
		options->merge = (int)number(value, 1, 8);
		break;
	case OPT_DEADLINE:
		options->deadline = (int)number(value, 1, 3600);
		break;
	case OPT_WRAP:
		parse_wrap(options, value);
		break;
	case OPT_RANK:
		options->rank = (int)number(value, 0, NET_MAX_PROCS - 1);
		break;
	case OPT_CONTROL:
		options->control = (int)number(value, 0, 1 << 20);
		break;
	default:
		drive_fail("see the table of options in %s", __FILE_NAME__);
	}
}

static void parse_options(struct net_options *options, int argc, char **argv)
{
	int option;

	*options = (struct net_options){.source.api = 12,
					.procs = 2,
					.communicators = 1,
					.connections = 4,
					.messages = 2500,
					.outstanding = 8,
					.max_size = 4 << 20,
					.seed = 1,
					.deadline = 120,
					.rank = -1};
	while ((option = getopt_long(argc, argv, "", long_options, NULL)) != -1)
		set_option(options, option, optarg);
	drive_check(optind == argc, "%s: not an option", argv[optind]);
	drive_check(options->source.path, "--lib PATH is missing");
	for (int i = 0; i < options->nsizes; i++)
		if (options->sizes[i] > options->max_size)
			options->max_size = options->sizes[i];
}

/* ---- the hub ---- */

struct hub {
	const struct net_options *options;
	struct {
		pid_t pid;
		int control; /* -1: the rank has closed it */
		bool finished;
		struct net_packet result;
	} ranks[NET_MAX_PROCS];
};

/* Becomes the rank's process: this program again, under the rank's command if it has one. */
__attribute__((noreturn)) static void become_rank(const struct net_options *options, char **argv, int argc, int rank,
						  int control)
{
	char rank_text[16], control_text[16], self[4096], script[4096];
	char **args = calloc((size_t)argc + 16, sizeof(*args));
	ssize_t length = readlink("/proc/self/exe", self, sizeof(self) - 1);
	int n = 0;

	drive_check(args && length > 0, "cannot start rank %d: %m", rank);
	self[length] = 0;
	snprintf(rank_text, sizeof(rank_text), "%d", rank);
	snprintf(control_text, sizeof(control_text), "%d", control);
	if (options->wrap[rank]) {
		snprintf(script, sizeof(script), "exec %s \"$@\"", options->wrap[rank]);
		args[n++] = "/bin/sh";
		args[n++] = "-c";
		args[n++] = script;
		args[n++] = "sh"; /* $0 of the script */
	}
	args[n++] = self;
	for (int i = 1; i < argc; i++)
		args[n++] = argv[i];
	args[n++] = "--rank";
	args[n++] = rank_text;
	args[n++] = "--control";
	args[n++] = control_text;
	args[n] = NULL;
	execv(args[0], args);
	drive_fail("cannot run %s: %m", args[0]);
}

static void start_ranks(struct hub *hub, char **argv, int argc)
{
	int pair[2];

	for (int rank = 0; rank < hub->options->procs; rank++) {
		if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pair) != 0)
			drive_fail("socketpair: %m");
		hub->ranks[rank].pid = fork();
		drive_check(hub->ranks[rank].pid >= 0, "fork: %m");
		if (hub->ranks[rank].pid == 0) {
			for (int other = 0; other < rank; other++)
				close(hub->ranks[other].control);
			close(pair[0]);
			become_rank(hub->options, argv, argc, rank, pair[1]);
		}
		close(pair[1]);
		hub->ranks[rank].control = pair[0];
	}
}

__attribute__((noreturn)) static void give_up(struct hub *hub, const char *why, int rank)
{
	for (int i = 0; i < hub->options->procs; i++)
		kill(hub->ranks[i].pid, SIGKILL);
	drive_fail("%s (rank %d)", why, rank);
}

static void let_go(struct hub *hub)
{
	for (int rank = 0; rank < hub->options->procs; rank++)
		if (!hub->ranks[rank].finished)
			return;
	for (int rank = 0; rank < hub->options->procs; rank++)
		shutdown(hub->ranks[rank].control, SHUT_RDWR);
}

/* Takes one datagram of a rank. A rank that closes its socket without a result has failed and has said why. */
static void take_packet(struct hub *hub, int rank)
{
	struct net_packet packet;
	ssize_t got = recv(hub->ranks[rank].control, &packet, sizeof(packet), 0);

	if (got != (ssize_t)sizeof(packet)) {
		close(hub->ranks[rank].control);
		hub->ranks[rank].control = -1;
		if (!hub->ranks[rank].finished)
			give_up(hub, "a process ended without a result", rank);
		return;
	}
	if (packet.kind == NET_PACKET_RESULT) {
		hub->ranks[rank].finished = true;
		hub->ranks[rank].result = packet;
		if (hub->options->together)
			let_go(hub);
		return;
	}
	if (send(hub->ranks[packet.to].control, &packet, sizeof(packet), MSG_NOSIGNAL) != (ssize_t)sizeof(packet))
		give_up(hub, "cannot deliver a handle", packet.to);
}

static int poll_timeout_ms(double deadline)
{
	double left = deadline - drive_now();

	return left > 0 ? (int)(left * 1000) + 1 : 0;
}

/* Runs until every rank has closed its socket. The ranks watch the deadline; the hub leaves them time to report it. */
static void forward_packets(struct hub *hub)
{
	double deadline = drive_now() + hub->options->deadline + 10;
	struct pollfd fds[NET_MAX_PROCS];
	int open, ready;

	for (;;) {
		open = 0;
		for (int rank = 0; rank < hub->options->procs; rank++) {
			fds[rank] = (struct pollfd){.fd = hub->ranks[rank].control, .events = POLLIN};
			open += hub->ranks[rank].control >= 0;
		}
		if (!open)
			return;
		ready = poll(fds, (nfds_t)hub->options->procs, poll_timeout_ms(deadline));
		if (ready == 0)
			give_up(hub, "no end after the deadline", -1);
		for (int rank = 0; ready > 0 && rank < hub->options->procs; rank++)
			if (fds[rank].revents)
				take_packet(hub, rank);
	}
}

static void collect_exits(struct hub *hub)
{
	int status;

	for (int rank = 0; rank < hub->options->procs; rank++) {
		if (waitpid(hub->ranks[rank].pid, &status, 0) < 0)
			drive_fail("waitpid: %m");
		if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
			give_up(hub, "a process failed at its end", rank);
	}
}

static void print_summary(const struct hub *hub)
{
	const struct net_options *options = hub->options;
	uint64_t messages = 0, bytes = 0, retries = 0;
	double seconds = 0;

	for (int rank = 0; rank < options->procs; rank++) {
		const struct net_packet *result = &hub->ranks[rank].result;

		messages += result->messages;
		bytes += result->bytes;
		retries += result->retries;
		if (result->seconds > seconds)
			seconds = result->seconds;
	}
	printf("{\"api\": %d, \"procs\": %d, \"communicators\": %d, \"connections\": %d, \"messages\": %llu, "
	       "\"bytes\": %llu, \"retries\": %llu, \"seed\": %llu, \"seconds\": %.3f}\n",
	       options->source.api, options->procs, options->communicators, options->connections,
	       (unsigned long long)messages, (unsigned long long)bytes, (unsigned long long)retries,
	       (unsigned long long)options->seed, seconds);
}

int main(int argc, char **argv)
{
	struct net_options options;
	struct hub hub = {.options = &options};

	parse_options(&options, argc, argv);
	if (options.rank >= 0)
		return net_rank_main(&options);
	start_ranks(&hub, argv, argc);
	forward_packets(&hub);
	collect_exits(&hub);
	print_summary(&hub);
	return 0;
}
