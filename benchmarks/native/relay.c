/* SPDX-License-Identifier: MIT
 *
 * A long line between two network namespaces of this machine: a TUN device in each, and one thread per direction that
 * carries packets from one to the other through a line (line.h). The first line of JSON on stdout means that the
 * devices exist. On SIGTERM, SIGINT or the end of stdin they are removed, and a last line has the counts. Started by
 * wan.py.
 *
 * The kernel hands over dozens of TCP segments at once, as to a network card with segmentation offload; after a loss
 * the remaining segments are passed on (segments.h). With a rate, which counts packets of the wire, segments come one
 * at a time. Checksums are always left to "the card".
 */
#include "line.h"
#include "segments.h"

#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <limits.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <linux/virtio_net.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define HEADER_SIZE ((uint32_t)sizeof(struct virtio_net_hdr))
#define WIRE_PACKET 1500u /* the default MTU of an interface */
#define LARGEST_PACKET 65535u
#define WIRE_PACKETS (1u << 18)    /* under way: more than two cores carry in 0.1 s */
#define LARGEST_PACKETS (1u << 15) /* by far not all of them large */
#define BATCH 64                   /* packets read between two looks at those that are due */

struct arguments {
	const char *namespaces[2];
	const char *device;
	struct line_config line;
};

/* Of the whole relay: a flag for threads at work and an eventfd for those that sleep. */
struct end {
	atomic_bool reached;
	int event;
};

struct direction {
	int from;
	int to;
	struct end *end;
	struct line *line;
	size_t capacity;  /* bytes of the largest packet with its header */
	uint64_t packets; /* of the wire, handed out */
	uint64_t bytes;   /* of those, with one pair of headers for all that were written at once */
	uint64_t refused; /* packets rejected by the receiving device */
	int error;
	pthread_t thread;
	bool started;
};

struct relay {
	int devices[2];
	struct end end;
	struct direction directions[2];
};

static int complain(int error, const char *format, ...) __attribute__((format(printf, 2, 3)));

static int complain(int error, const char *format, ...)
{
	va_list arguments;

	fputs("relay: ", stderr);
	va_start(arguments, format);
	vfprintf(stderr, format, arguments);
	va_end(arguments);
	fprintf(stderr, ": %s\n", strerror(-error));
	return error;
}

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static void end_now(struct end *end)
{
	uint64_t one = 1;

	atomic_store(&end->reached, true);
	if (write(end->event, &one, sizeof(one)) < 0)
		complain(-errno, "eventfd");
}

/* ---- one direction ---- */

/* Reads arrived packets. Returns their number, or -errno. */
static int take_in(struct direction *direction)
{
	int taken = 0;

	while (taken < BATCH) {
		void *room = line_room(direction->line);
		ssize_t size;

		if (!room)
			break;
		size = read(direction->from, room, direction->capacity);
		if (size < 0 && errno == EAGAIN)
			break;
		if (size < 0)
			return -errno;
		line_enter(direction->line, now_ns(), (size_t)size);
		taken++;
	}
	return taken;
}

static void hand_over(struct direction *direction, const struct iovec *parts, int count, uint32_t packets)
{
	ssize_t written = writev(direction->to, parts, count);

	if (written < 0) {
		direction->refused += packets;
		return;
	}
	direction->packets += packets;
	direction->bytes += (uint64_t)written - HEADER_SIZE;
}

/* The segments from `first` to before `end`. */
static void hand_over_some(struct direction *direction, const struct segments *whole, uint32_t first, uint32_t end)
{
	char headers[SEGMENTS_MAX_HEADERS];
	struct iovec parts[2] = {{.iov_base = (void *)whole->packet, .iov_len = whole->size}};
	bool all = first == 0 && end == whole->count;

	if (first == end)
		return;
	if (!all)
		segments_cut(whole, first, end, headers, parts);
	hand_over(direction, parts, all ? 1 : 2, end - first);
}

static void hand_over_survivors(struct direction *direction, const void *packet, size_t size)
{
	struct segments whole;
	uint32_t first = 0;

	segments_find(packet, size, &whole);
	for (uint32_t i = 0; i < whole.count; i++) {
		if (line_loses(direction->line)) {
			hand_over_some(direction, &whole, first, i);
			first = i + 1;
		}
	}
	hand_over_some(direction, &whole, first, whole.count);
}

/* Writes the packets that are due. */
static void hand_out(struct direction *direction)
{
	uint64_t now = now_ns();

	while (line_due(direction->line) <= now) {
		size_t size;
		const void *packet = line_oldest(direction->line, &size);

		hand_over_survivors(direction, packet, size);
		line_leave(direction->line);
	}
}

/* Waits for an arrival, a due packet, or the end. A full line has no room for arrivals. */
static void await(struct direction *direction)
{
	struct pollfd ready[] = {
		{.fd = direction->end->event, .events = POLLIN},
		{.fd = direction->from, .events = POLLIN},
	};
	nfds_t count = line_room(direction->line) ? 2 : 1;
	uint64_t due = line_due(direction->line);
	uint64_t now = now_ns();
	uint64_t left = due > now ? due - now : 0;
	struct timespec timeout = {.tv_sec = (time_t)(left / 1000000000), .tv_nsec = (long)(left % 1000000000)};

	ppoll(ready, count, due == LINE_NEVER ? NULL : &timeout, NULL);
}

static void *carry(void *argument)
{
	struct direction *direction = argument;

	/* By default a sleeping thread is woken up to 50 µs late, so that the processor may sleep longer. */
	prctl(PR_SET_TIMERSLACK, 1);
	while (!atomic_load_explicit(&direction->end->reached, memory_order_relaxed)) {
		int taken = take_in(direction);

		if (taken < 0) {
			direction->error = taken;
			break;
		}
		hand_out(direction);
		if (!taken)
			await(direction);
	}
	end_now(direction->end);
	return NULL;
}

/* ---- devices ---- */

/* Moves the calling thread into the namespace. */
static int enter(const char *namespace)
{
	char path[PATH_MAX];
	int fd, err;

	snprintf(path, sizeof(path), "/run/netns/%s", namespace);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return complain(-errno, "%s", path);
	err = setns(fd, CLONE_NEWNET) ? complain(-errno, "%s", path) : 0;
	close(fd);
	return err;
}

/* A device in the caller's namespace that lives as long as the descriptor. Returns the descriptor, or -errno. */
static int open_device(const char *name, bool large)
{
	struct ifreq request = {.ifr_flags = IFF_TUN | IFF_NO_PI | IFF_VNET_HDR};
	unsigned int offloads = TUN_F_CSUM | (large ? TUN_F_TSO4 : 0);
	int fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
	int err;

	if (fd < 0)
		return complain(-errno, "/dev/net/tun");
	strncpy(request.ifr_name, name, IFNAMSIZ - 1);
	if (!ioctl(fd, TUNSETIFF, &request) && !ioctl(fd, TUNSETOFFLOAD, offloads))
		return fd;
	err = -errno;
	close(fd);
	return complain(err, "device %s", name);
}

/* ---- the whole ---- */

static int create(struct relay *relay, const struct arguments *arguments)
{
	struct line_config config = arguments->line;
	bool large = !config.rate;
	int err = 0;

	config.header_size = HEADER_SIZE;
	config.packet_size = large ? LARGEST_PACKET : WIRE_PACKET;
	config.packets = large ? LARGEST_PACKETS : WIRE_PACKETS;
	relay->end.event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (relay->end.event < 0)
		return complain(-errno, "eventfd");
	for (int i = 0; i < 2 && !err; i++) {
		err = enter(arguments->namespaces[i]);
		relay->devices[i] = err ? err : open_device(arguments->device, large);
		err = relay->devices[i] < 0 ? relay->devices[i] : 0;
	}
	for (int i = 0; i < 2 && !err; i++) {
		struct direction *direction = &relay->directions[i];

		direction->from = relay->devices[i];
		direction->to = relay->devices[1 - i];
		direction->end = &relay->end;
		direction->capacity = config.header_size + config.packet_size;
		err = line_create(&direction->line, &config);
		if (err)
			return complain(err, "a line like this");
		config.seed++; /* the two directions lose different packets */
	}
	return err;
}

static int start(struct relay *relay)
{
	for (int i = 0; i < 2; i++) {
		struct direction *direction = &relay->directions[i];
		int err = pthread_create(&direction->thread, NULL, carry, direction);

		if (err)
			return complain(-err, "thread");
		direction->started = true;
	}
	return 0;
}

/* Ends both threads. Returns the first error. */
static int stop(struct relay *relay)
{
	int err = 0;

	end_now(&relay->end);
	for (int i = 0; i < 2; i++) {
		struct direction *direction = &relay->directions[i];

		if (direction->started)
			pthread_join(direction->thread, NULL);
		if (direction->error && !err)
			err = complain(direction->error, "device %d", i);
	}
	return err;
}

static void destroy(struct relay *relay)
{
	for (int i = 0; i < 2; i++) {
		line_destroy(relay->directions[i].line);
		if (relay->devices[i] >= 0)
			close(relay->devices[i]);
	}
	if (relay->end.event >= 0)
		close(relay->end.event);
}

/* Waits for a signal, the end of stdin, or a failed thread. */
static void await_end(const struct relay *relay, int signals)
{
	struct pollfd ends[] = {
		{.fd = relay->end.event, .events = POLLIN},
		{.fd = signals, .events = POLLIN},
		{.fd = STDIN_FILENO, .events = POLLIN},
	};
	char ignored[256];

	while (poll(ends, 3, -1) >= 0) {
		if (ends[0].revents || ends[1].revents)
			return;
		if (ends[2].revents && read(STDIN_FILENO, ignored, sizeof(ignored)) <= 0)
			return;
	}
}

static void print_counts(const struct relay *relay, uint32_t seed)
{
	printf("{\"seed\": %" PRIu32 ", \"directions\": [", seed);
	for (int i = 0; i < 2; i++) {
		const struct direction *direction = &relay->directions[i];
		struct line_counts counts;

		line_count(direction->line, &counts);
		printf("%s{\"carried\": %" PRIu64 ", \"packets\": %" PRIu64 ", \"bytes\": %" PRIu64
		       ", \"lost\": %" PRIu64,
		       i ? ", " : "", counts.drawn, direction->packets, direction->bytes, counts.lost);
		printf(", \"overflowed\": %" PRIu64 ", \"full\": %" PRIu64 ", \"refused\": %" PRIu64 "}",
		       counts.overflowed, counts.full, direction->refused);
	}
	puts("]}");
	fflush(stdout);
}

static int block_signals(void)
{
	sigset_t ends;
	int fd;

	sigemptyset(&ends);
	sigaddset(&ends, SIGTERM);
	sigaddset(&ends, SIGINT);
	pthread_sigmask(SIG_BLOCK, &ends, NULL);
	fd = signalfd(-1, &ends, SFD_CLOEXEC);
	return fd < 0 ? complain(-errno, "signalfd") : fd;
}

static int run(const struct arguments *arguments)
{
	struct relay relay = {.devices = {-1, -1}, .end.event = -1};
	int signals = block_signals();
	int err = signals < 0 ? signals : create(&relay, arguments);

	if (!err) {
		printf("{\"seed\": %" PRIu32 ", \"large_packets\": %s}\n", arguments->line.seed,
		       arguments->line.rate ? "false" : "true");
		fflush(stdout);
		err = start(&relay);
		if (!err)
			await_end(&relay, signals);
		err = stop(&relay) ?: err;
		print_counts(&relay, arguments->line.seed);
	}
	destroy(&relay);
	if (signals >= 0)
		close(signals);
	return err;
}

/* ---- the command line ---- */

static int usage(void)
{
	fputs("usage: relay --device NAME [--delay NANOSECONDS] [--loss SHARE] [--rate BYTES_PER_SECOND --queue BYTES]\n"
	      "             [--seed NUMBER] NAMESPACE NAMESPACE\n"
	      "Each direction has this delay, loss and rate. Ends on SIGTERM, SIGINT and at the end of stdin.\n",
	      stderr);
	return 2;
}

static bool read_number(const char *text, uint64_t most, uint64_t *value)
{
	char *end;

	errno = 0;
	*value = strtoull(text, &end, 10);
	return !errno && end != text && !*end && *text != '-' && *value <= most;
}

static bool read_option(struct arguments *arguments, int option)
{
	struct line_config *line = &arguments->line;
	uint64_t seed;
	char *end;

	switch (option) {
	case 'i':
		arguments->device = optarg;
		return strlen(optarg) > 0 && strlen(optarg) < IFNAMSIZ;
	case 'd':
		return read_number(optarg, UINT64_MAX, &line->delay);
	case 'l':
		line->loss = strtod(optarg, &end);
		return end != optarg && !*end;
	case 'r':
		return read_number(optarg, UINT64_MAX, &line->rate);
	case 'q':
		return read_number(optarg, UINT64_MAX, &line->queue);
	case 's':
		if (!read_number(optarg, UINT32_MAX, &seed))
			return false;
		line->seed = (uint32_t)seed;
		return true;
	default:
		return false;
	}
}

int main(int count, char **words)
{
	static const struct option options[] = {
		{"device", required_argument, NULL, 'i'},
		{"delay", required_argument, NULL, 'd'},
		{"loss", required_argument, NULL, 'l'},
		{"rate", required_argument, NULL, 'r'},
		{"queue", required_argument, NULL, 'q'},
		{"seed", required_argument, NULL, 's'},
		{NULL, 0, NULL, 0},
	};
	struct arguments arguments = {.line.seed = 1};
	int option;

	while ((option = getopt_long(count, words, "", options, NULL)) != -1)
		if (!read_option(&arguments, option))
			return usage();
	if (!arguments.device || count - optind != 2)
		return usage();
	arguments.namespaces[0] = words[optind];
	arguments.namespaces[1] = words[optind + 1];
	return run(&arguments) ? 1 : 0;
}
