/* SPDX-License-Identifier: MIT
 *
 * See publish.h.
 */
#include "stats/publish.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
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
/* Active connections that are looked at on each tick; of more, each one less often. */
#define SAMPLED 256
#define LATE_US 1000000
#define SCHEMA_BYTES 8192

struct segment {
	struct bnet_stats_header header;
	char schema[SCHEMA_BYTES];
	struct bnet_stats_process process;
	struct bnet_stats_connection connections[BNET_STATS_CONNECTIONS];
	struct bnet_stats_stream streams[BNET_STATS_STREAMS];
};

static struct {
	bool tried;
	struct segment *segment;
	struct bnet_stats_process process; /* what does not change */
	bool under_way;
	uint32_t round;
	uint32_t of_connection[BNET_STATS_CONNECTIONS]; /* the round in which the row was last written; 0: it is free */
	uint32_t of_stream[BNET_STATS_STREAMS];
	uint64_t left_out, streams_left_out; /* in this round */
	uint64_t sampled_us;
	unsigned tick;
} stats;

/* ---- the text that names the fields ---- */

static void append(size_t *at, const char *table, size_t from, size_t rows, size_t size)
{
	*at += (size_t)snprintf(stats.segment->schema + *at, SCHEMA_BYTES - *at, "table %s %zu %zu %zu\n", table, from,
				rows, size);
}

static void append_field(size_t *at, const char *name, size_t offset, size_t size)
{
	if (*at < SCHEMA_BYTES)
		*at += (size_t)snprintf(stats.segment->schema + *at, SCHEMA_BYTES - *at, "%s %zu %zu\n", name, offset,
					size);
}

static void write_schema(void)
{
	size_t at = 0;

#define FIELD(name)                                                         \
	append_field(&at, #name, offsetof(struct bnet_stats_process, name), \
		     sizeof(((struct bnet_stats_process *)0)->name));
	append(&at, "process", offsetof(struct segment, process), 1, sizeof(struct bnet_stats_process));
	BNET_STATS_PROCESS(FIELD, FIELD)
	BNET_PROCESS_COUNTERS(FIELD)
	BNET_CONN_COUNTERS(FIELD)
#undef FIELD
#define FIELD(name)                                                            \
	append_field(&at, #name, offsetof(struct bnet_stats_connection, name), \
		     sizeof(((struct bnet_stats_connection *)0)->name));
	append(&at, "connection", offsetof(struct segment, connections), BNET_STATS_CONNECTIONS,
	       sizeof(struct bnet_stats_connection));
	BNET_STATS_CONNECTION(FIELD, FIELD)
	BNET_CONN_COUNTERS(FIELD)
#undef FIELD
#define FIELD(name)                                                        \
	append_field(&at, #name, offsetof(struct bnet_stats_stream, name), \
		     sizeof(((struct bnet_stats_stream *)0)->name));
	append(&at, "stream", offsetof(struct segment, streams), BNET_STATS_STREAMS, sizeof(struct bnet_stats_stream));
	BNET_STATS_STREAM(FIELD, FIELD)
#undef FIELD
	stats.segment->header.text_at = offsetof(struct segment, schema);
	stats.segment->header.text_size = at < SCHEMA_BYTES ? at : SCHEMA_BYTES;
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

/* A reader that meets an odd number, or two that differ, reads again. */
static void write_row(void *row, const void *fresh, size_t size)
{
	_Atomic uint64_t *sequence = row;
	const uint64_t before = atomic_load_explicit(sequence, memory_order_relaxed) & ~UINT64_C(1);

	atomic_store_explicit(sequence, before + 1, memory_order_relaxed);
	atomic_thread_fence(memory_order_release);
	memcpy((char *)row + sizeof(*sequence), (const char *)fresh + sizeof(*sequence), size - sizeof(*sequence));
	atomic_store_explicit(sequence, before + 2, memory_order_release);
}

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
	write_row(&stats.segment->process, process, sizeof(*process));
	bnet_segment_touch();
}

static void begin(void)
{
	stats.tried = true;
	if (!bnet_engine.config.stats)
		return;
	stats.segment = bnet_segment_make(bnet_engine.config.stats_dir, sizeof(struct segment));
	if (!stats.segment)
		return;
	write_schema();
	stats.process.started_us = bnet_wall_us();
	stats.segment->header.version = BNET_STATS_VERSION;
	stats.segment->header.size = sizeof(struct segment);
	publish_process();
	memcpy(stats.segment->header.magic, BNET_STATS_MAGIC, sizeof(stats.segment->header.magic));
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
	write_row(&stats.segment->streams[at], &row, sizeof(row));
}

/* Nothing has moved on it for so long although something is posted. */
static uint64_t still_us(struct bnet_conn *conn, uint64_t now_us)
{
	const uint64_t moves = bnet_conn_moves(&conn->counts);

	if (moves != conn->seen.moves || !bnet_conn_has_work(conn) || conn->seen.moved_us == 0)
		conn->seen.moved_us = now_us;
	conn->seen.moves = moves;
	return now_us - conn->seen.moved_us;
}

static void publish_connection(struct bnet_conn *conn, uint64_t now_us)
{
	struct bnet_stats_connection row = {.used = 1, .id = conn->id, .sender = conn->sender};
	int at = row_for(&conn->seen.row, stats.of_connection, BNET_STATS_CONNECTIONS);

	if (at < 0) {
		stats.left_out++;
		return;
	}
	stats.of_connection[at] = stats.round;
	if (conn->seen.opened_us == 0)
		conn->seen.opened_us = bnet_wall_us();
	row.opened_us = conn->seen.opened_us;
	row.error = (uint64_t)-atomic_load_explicit(&conn->error, memory_order_relaxed);
	row.streams = (uint64_t)conn->nstreams;
	row.level = (uint64_t)atomic_load_explicit(&conn->level, memory_order_relaxed);
	row.most = (uint64_t)conn->setup.most;
	row.outstanding = bnet_conn_outstanding(conn);
	row.posted_us = conn->seen.posted_us;
	row.still_us = still_us(conn, now_us);
	copy_text(row.device, conn->dev->name);
	copy_text(row.peer, conn->peer);
#define X(name) row.name = atomic_load_explicit(&conn->counts.name, memory_order_relaxed);
	BNET_CONN_COUNTERS(X)
#undef X
	write_row(&stats.segment->connections[at], &row, sizeof(row));
}

/* ---- a round ---- */

/* What was not seen in this round is no more. */
static void sweep(void)
{
	static const struct bnet_stats_connection no_connection;
	static const struct bnet_stats_stream no_stream;

	for (int i = 0; i < BNET_STATS_CONNECTIONS; i++)
		if (stats.of_connection[i] && stats.of_connection[i] != stats.round) {
			write_row(&stats.segment->connections[i], &no_connection, sizeof(no_connection));
			stats.of_connection[i] = 0;
		}
	for (int i = 0; i < BNET_STATS_STREAMS; i++)
		if (stats.of_stream[i] && stats.of_stream[i] != stats.round) {
			write_row(&stats.segment->streams[i], &no_stream, sizeof(no_stream));
			stats.of_stream[i] = 0;
		}
}

/* True: all connections have been seen. */
static bool go_on(uint64_t now_us)
{
	int streams = 0, connections = 0;

	bnet_list_each(node, &bnet_engine.conns) {
		struct bnet_conn *conn = bnet_entry(node, struct bnet_conn, node);

		if (conn->seen.round == stats.round || !conn->setup.ready)
			continue;
		if (streams >= STREAMS_AT_A_TIME || connections++ == CONNECTIONS_AT_A_TIME)
			return false;
		conn->seen.round = stats.round;
		publish_connection(conn, now_us);
		for (int i = 0; i < conn->nstreams; i++)
			publish_stream(conn, conn->streams[i]);
		streams += conn->nstreams;
	}
	return true;
}

bool bnet_stats_publish(uint64_t now_us)
{
	if (!stats.tried)
		begin();
	if (!stats.segment)
		return false;
	if (!stats.under_way) {
		stats.under_way = true;
		stats.left_out = stats.streams_left_out = 0;
		if (++stats.round == 0)
			stats.round = 1;
	}
	if (!go_on(now_us))
		return true;
	sweep();
	publish_process();
	stats.under_way = false;
	return false;
}

void bnet_stats_sample(uint64_t now_us)
{
	const unsigned every = 1 + (unsigned)bnet_engine.active.count / SAMPLED;
	uint64_t elapsed = now_us - stats.sampled_us;

	if (!stats.segment || ++stats.tick % every)
		return;
	stats.sampled_us = now_us;
	/* Between two ticks it was idle. */
	if (elapsed > LATE_US)
		return;
	bnet_list_each(node, &bnet_engine.active.items) {
		struct bnet_conn *conn =
			bnet_entry(bnet_entry(node, struct bnet_work_item, node), struct bnet_conn, work);

		if (!bnet_conn_has_work(conn))
			continue;
		conn->seen.posted_us += elapsed;
	}
}

void bnet_stats_end(void)
{
	bnet_segment_end();
	stats.segment = NULL;
	stats.tried = stats.under_way = false;
	memset(stats.of_connection, 0, sizeof(stats.of_connection));
	memset(stats.of_stream, 0, sizeof(stats.of_stream));
}

void bnet_stats_exit(void)
{
	bnet_segment_remove();
}

void bnet_stats_forget(void)
{
	bnet_segment_forget();
	bnet_stats_end();
}
