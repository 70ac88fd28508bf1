/* SPDX-License-Identifier: MIT
 *
 * See publish.h.
 */
#include "stats/publish.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/address.h"
#include "base/tcp_info.h"
#include "common/clock.h"
#include "engine/engine.h"
#include "stats/layout.h"
#include "stats/segment.h"
#include "transport/conn.h"

/* Streams, each a system call of a microsecond, and connections at a time: those who need the engine's lock wait
 * meanwhile. */
#define STREAMS_AT_A_TIME 64
#define CONNECTIONS_AT_A_TIME 256
/* Active connections that are looked at on each tick; of more, all of them on one of several ticks. */
#define SAMPLED 256
/* A connection that was not looked at for so long was idle meanwhile. */
#define LATE_US 100000
#define SCHEMA_BYTES 8192

struct segment {
	struct bnet_stats_header header;
	char text[SCHEMA_BYTES];
	struct bnet_stats_process process;
	struct bnet_stats_connection connections[BNET_STATS_CONNECTIONS];
	struct bnet_stats_stream streams[BNET_STATS_STREAMS];
};

static struct {
	bool tried, shown, exiting;
	uint64_t writes;
	struct bnet_stats_process process; /* what does not change */
	bool under_way;
	uint32_t round;
	uint32_t of_connection[BNET_STATS_CONNECTIONS]; /* the round in which the row was last written; 0: it is free */
	uint32_t of_stream[BNET_STATS_STREAMS];
	uint64_t left_out, streams_left_out; /* in this round */
	unsigned tick;
} stats;

/* ---- the text that names the fields ---- */

struct text {
	char bytes[SCHEMA_BYTES];
	size_t size;
};

__attribute__((format(printf, 2, 3))) static void append(struct text *text, const char *format, ...)
{
	va_list arguments;
	int n;

	va_start(arguments, format);
	n = vsnprintf(text->bytes + text->size, SCHEMA_BYTES - text->size, format, arguments);
	va_end(arguments);
	if (n > 0 && (size_t)n < SCHEMA_BYTES - text->size)
		text->size += (size_t)n;
}

#define TABLE(name, member, rows, row) \
	append(text, "table " name " %zu %d %zu\n", offsetof(struct segment, member), rows, sizeof(struct row));
#define FIELD(row, name) append(text, #name " %zu %zu\n", offsetof(struct row, name), sizeof(((struct row *)0)->name));

static void name_fields(struct text *text)
{
#define OF_PROCESS(name) FIELD(bnet_stats_process, name)
#define OF_CONNECTION(name) FIELD(bnet_stats_connection, name)
#define OF_STREAM(name) FIELD(bnet_stats_stream, name)
	TABLE("process", process, 1, bnet_stats_process)
	BNET_STATS_PROCESS(OF_PROCESS, OF_PROCESS)
	BNET_PROCESS_COUNTERS(OF_PROCESS)
	BNET_CONN_COUNTERS(OF_PROCESS)
	TABLE("connection", connections, BNET_STATS_CONNECTIONS, bnet_stats_connection)
	BNET_STATS_CONNECTION(OF_CONNECTION, OF_CONNECTION)
	BNET_CONN_COUNTERS(OF_CONNECTION)
	TABLE("stream", streams, BNET_STATS_STREAMS, bnet_stats_stream)
	BNET_STATS_STREAM(OF_STREAM, OF_STREAM)
}

/* ---- the process ---- */

/* As far as there is room. */
static void copy_text(char out[BNET_STATS_TEXT], const char *text)
{
	memcpy(out, text, strnlen(text, BNET_STATS_TEXT - 1));
}

static void copy_first(char out[BNET_STATS_TEXT], const char *const *names)
{
	for (; *names; names++) {
		const char *text = getenv(*names);

		if (text) {
			copy_text(out, text);
			return;
		}
	}
}

void bnet_stats_configure(void)
{
	static const char *const rank[] = {"RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID", NULL};
	static const char *const size[] = {"WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS", NULL};
	static const char *const local[] = {"LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID",
					    "SLURM_LOCALID", NULL};
	static const char *const job[] = {"SLURM_JOB_ID", "TORCHELASTIC_RUN_ID", NULL};
	struct bnet_stats_process *process = &stats.process;

	copy_first(process->rank, rank);
	copy_first(process->world_size, size);
	copy_first(process->local_rank, local);
	copy_first(process->job, job);
	copy_text(process->version, BNET_VERSION);
	copy_text(process->program, program_invocation_short_name);
	gethostname(process->host, sizeof(process->host) - 1);
}

#define WRITE_ROW(at, row)                                    \
	do {                                                  \
		(row)->begins = (row)->ends = ++stats.writes; \
		bnet_segment_write(at, row, sizeof(*(row)));  \
	} while (0)

#define AT_CONNECTION(i) (offsetof(struct segment, connections) + (size_t)(i) * sizeof(struct bnet_stats_connection))
#define AT_STREAM(i) (offsetof(struct segment, streams) + (size_t)(i) * sizeof(struct bnet_stats_stream))

static uint64_t us_of(struct timeval time)
{
	return (uint64_t)time.tv_sec * 1000000 + (uint64_t)time.tv_usec;
}

static void publish_process(void)
{
	struct bnet_stats_process *process = &stats.process;
	struct bnet_conn_counts sum = bnet_counts.ended;
	struct rusage usage = {.ru_utime = {0, 0}};

	bnet_list_each(node, &bnet_engine.conns)
		bnet_conn_counts_add(&sum, &bnet_entry(node, struct bnet_conn, node)->counts);
#define X(name) process->name = atomic_load_explicit(&sum.name, memory_order_relaxed);
	BNET_CONN_COUNTERS(X)
#undef X
#define X(name) process->name = atomic_load_explicit(&bnet_counts.name, memory_order_relaxed);
	BNET_PROCESS_COUNTERS(X)
#undef X
	getrusage(RUSAGE_SELF, &usage);
	process->used = 1;
	process->pid = (uint64_t)getpid();
	process->processor_us = us_of(usage.ru_utime) + us_of(usage.ru_stime);
	process->contended = bnet_now_ms() < bnet_engine.contended_until_ms;
	process->connections_left_out = stats.left_out;
	process->streams_left_out = stats.streams_left_out;
	process->published_us = bnet_wall_us();
	WRITE_ROW(offsetof(struct segment, process), process);
	bnet_segment_touch();
}

/* The header last: a file without one is none. */
static void begin(void)
{
	static struct text text;
	struct bnet_stats_header header = {.version = BNET_STATS_VERSION,
					   .size = sizeof(struct segment),
					   .text_at = offsetof(struct segment, text)};

	stats.tried = true;
	if (!bnet_engine.config.stats || stats.exiting)
		return;
	stats.shown = bnet_segment_make(bnet_engine.config.stats_dir, sizeof(struct segment));
	if (!stats.shown)
		return;
	text.size = 0;
	name_fields(&text);
	header.text_size = text.size;
	stats.process.started_us = bnet_wall_us();
	bnet_segment_write(header.text_at, text.bytes, text.size);
	publish_process();
	memcpy(header.magic, BNET_STATS_MAGIC, sizeof(header.magic));
	bnet_segment_write(0, &header, sizeof(header));
}

/* ---- rows ---- */

/* The one that it has had, or a free one. -1: none is left. */
static int row_for(int *row, uint32_t *rounds, int count)
{
	if (*row > 0)
		return *row - 1;
	for (int i = 0; i < count; i++)
		if (rounds[i] == 0) {
			*row = i + 1;
			return i;
		}
	return -1;
}

static void publish_stream(const struct bnet_conn *conn, struct bnet_stream *stream)
{
	struct bnet_stats_stream row = {.used = 1,
					.connection = conn->id,
					.sender = conn->sender,
					.serial = stream->serial};
	struct sockaddr_storage addr;
	socklen_t size = sizeof(addr), name = sizeof(row.congestion_control);
	char text[BNET_ADDRESS_TEXT];
	struct bnet_tcp_info info;
	int at = row_for(&stream->row, stats.of_stream, BNET_STATS_STREAMS);

	if (at < 0) {
		stats.streams_left_out++;
		return;
	}
	stats.of_stream[at] = stats.round;
	bnet_tcp_info_read(stream->fd, &info, 0);
	row.bytes_acked = info.bytes_acked;
	row.bytes_received = info.bytes_received;
	row.busy_us = info.busy_time;
	row.rwnd_limited_us = info.rwnd_limited;
	row.sndbuf_limited_us = info.sndbuf_limited;
	row.rtt_us = info.rtt;
	row.rttvar_us = info.rttvar;
	row.min_rtt_us = info.min_rtt;
	row.delivery_rate = info.delivery_rate;
	row.congestion_window = info.snd_cwnd;
	row.segment = info.snd_mss;
	row.segments_sent = info.data_segs_out;
	row.segments_received = info.data_segs_in;
	row.retransmits = info.total_retrans;
	row.unacked = info.unacked;
	row.unsent = info.notsent_bytes;
	row.silent_us = (uint64_t)(info.last_ack_received < info.last_data_received ? info.last_ack_received
										    : info.last_data_received) *
			1000;
	row.broken = stream->broken;
	if (getsockname(stream->fd, (struct sockaddr *)&addr, &size) == 0)
		copy_text(row.local, bnet_address_text(&addr, text));
	size = sizeof(addr);
	if (getpeername(stream->fd, (struct sockaddr *)&addr, &size) == 0)
		copy_text(row.remote, bnet_address_text(&addr, text));
	getsockopt(stream->fd, IPPROTO_TCP, TCP_CONGESTION, row.congestion_control, &name);
	row.congestion_control[BNET_STATS_TEXT - 1] = 0;
	WRITE_ROW(AT_STREAM(at), &row);
}

static void publish_connection(struct bnet_conn *conn)
{
	struct bnet_stats_connection row = {.used = 1, .id = conn->id, .sender = conn->sender};
	int at = row_for(&conn->seen.row, stats.of_connection, BNET_STATS_CONNECTIONS);

	row.published_us = bnet_wall_us();
	if (conn->seen.opened_us == 0)
		conn->seen.opened_us = row.published_us;
	if (at < 0) {
		stats.left_out++;
		return;
	}
	stats.of_connection[at] = stats.round;
	row.opened_us = conn->seen.opened_us;
	row.error = (uint64_t)-atomic_load_explicit(&conn->error, memory_order_relaxed);
	row.streams = (uint64_t)conn->nstreams;
	row.level = (uint64_t)atomic_load_explicit(&conn->level, memory_order_relaxed);
	row.most = (uint64_t)conn->setup.most;
	row.outstanding = bnet_conn_outstanding(conn);
	row.posted_us = conn->seen.posted_us;
	row.still_us = bnet_conn_has_work(conn) ? conn->seen.still_us : 0;
	copy_text(row.device, conn->dev->name);
	copy_text(row.peer, conn->peer);
#define X(name) row.name = atomic_load_explicit(&conn->counts.name, memory_order_relaxed);
	BNET_CONN_COUNTERS(X)
#undef X
	WRITE_ROW(AT_CONNECTION(at), &row);
}

/* ---- a round ---- */

/* Rows that this round has not written are of connections and streams that have ended. */
static void sweep(void)
{
	for (int i = 0; i < BNET_STATS_CONNECTIONS; i++)
		if (stats.of_connection[i] && stats.of_connection[i] != stats.round) {
			WRITE_ROW(AT_CONNECTION(i), &(struct bnet_stats_connection){.used = 0});
			stats.of_connection[i] = 0;
		}
	for (int i = 0; i < BNET_STATS_STREAMS; i++)
		if (stats.of_stream[i] && stats.of_stream[i] != stats.round) {
			WRITE_ROW(AT_STREAM(i), &(struct bnet_stats_stream){.used = 0});
			stats.of_stream[i] = 0;
		}
}

/* True: all connections have been seen. */
static bool go_on(void)
{
	int streams = 0, connections = 0;

	bnet_list_each(node, &bnet_engine.conns) {
		struct bnet_conn *conn = bnet_entry(node, struct bnet_conn, node);

		if (conn->seen.round == stats.round || !conn->setup.ready)
			continue;
		if (streams >= STREAMS_AT_A_TIME || connections++ == CONNECTIONS_AT_A_TIME)
			return false;
		conn->seen.round = stats.round;
		publish_connection(conn);
		/* A receiver may have more that were reset. */
		for (int i = 0; i < conn->nstreams && i < BNET_MAX_STREAMS; i++, streams++)
			publish_stream(conn, conn->streams[i]);
	}
	return true;
}

bool bnet_stats_publish(void)
{
	if (!stats.tried)
		begin();
	if (!stats.shown)
		return false;
	if (!stats.under_way) {
		stats.under_way = true;
		stats.left_out = stats.streams_left_out = 0;
		if (++stats.round == 0)
			stats.round = 1;
	}
	if (!go_on())
		return true;
	sweep();
	publish_process();
	stats.under_way = false;
	return false;
}

/* Something is posted on it: for so long, and nothing has moved for so long. */
static void sample(struct bnet_conn *conn, uint64_t now_us, uint64_t late_us)
{
	struct bnet_seen *seen = &conn->seen;
	const uint64_t elapsed = now_us - seen->sampled_us, moves = bnet_conn_moves(&conn->counts);
	const bool worked = seen->worked && elapsed <= late_us;

	seen->worked = bnet_conn_has_work(conn);
	seen->sampled_us = now_us;
	seen->still_us = worked && seen->worked && moves == seen->moves ? seen->still_us + elapsed : 0;
	seen->moves = moves;
	seen->posted_us += worked && seen->worked ? elapsed : 0;
}

void bnet_stats_sample(uint64_t now_us)
{
	const unsigned every = 1 + (unsigned)bnet_engine.active.count / SAMPLED;

	if (!stats.shown || ++stats.tick % every)
		return;
	bnet_list_each(node, &bnet_engine.active.items)
		sample(bnet_entry(bnet_entry(node, struct bnet_work_item, node), struct bnet_conn, work), now_us,
		       every * LATE_US);
}

void bnet_stats_end(void)
{
	if (stats.shown)
		bnet_segment_end();
	stats.shown = false;
	stats.tried = stats.under_way = false;
	memset(stats.of_connection, 0, sizeof(stats.of_connection));
	memset(stats.of_stream, 0, sizeof(stats.of_stream));
}

void bnet_stats_exit(void)
{
	stats.exiting = true;
	bnet_segment_remove();
}

void bnet_stats_forget(void)
{
	bnet_segment_forget();
	stats.shown = false;
	bnet_stats_end();
}
