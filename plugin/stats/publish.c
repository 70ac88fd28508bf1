/* SPDX-License-Identifier: MIT
 *
 * See publish.h.
 */
#include "stats/publish.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "common/clock.h"
#include "engine/engine.h"
#include "stats/layout.h"
#include "stats/rows.h"
#include "stats/segment.h"
#include "stats/trace.h"
#include "transport/conn.h"

/* Streams, each a system call of a microsecond, and connections at a time: those who need the engine's lock wait
 * meanwhile. */
#define STREAMS_AT_A_TIME 64
#define CONNECTIONS_AT_A_TIME 256
#define SCHEMA_BYTES 8192

struct segment {
	struct bnet_stats_header header;
	char text[SCHEMA_BYTES];
	struct bnet_stats_process process;
	struct bnet_stats_connection connections[BNET_STATS_CONNECTIONS];
	struct bnet_stats_stream streams[BNET_STATS_STREAMS];
	struct bnet_stats_operation operations[BNET_STATS_OPERATIONS];
};

static struct {
	bool tried, shown, exiting;
	uint64_t writes;
	struct bnet_stats_process process; /* what does not change */
	bool under_way, traced;
	uint32_t round;
	uint32_t of_connection[BNET_STATS_CONNECTIONS]; /* the round in which the row was last written; 0: it is free */
	uint32_t of_stream[BNET_STATS_STREAMS];
	uint64_t left_out, streams_left_out; /* in this round */
	struct bnet_connecting connecting;   /* as the process's row says */
	struct bnet_device_row devices[BNET_MAX_DEVICES];
	bnet_operation_reader *read_operation; /* NULL: nobody has shown any */
	uint64_t operations;                   /* that had begun, at the last look */
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
#define OF_OPERATION(name) FIELD(bnet_stats_operation, name)
	TABLE("process", process, 1, bnet_stats_process)
	BNET_STATS_PROCESS(OF_PROCESS, OF_PROCESS)
	BNET_PROCESS_COUNTERS(OF_PROCESS)
	BNET_CONN_COUNTERS(OF_PROCESS)
	TABLE("connection", connections, BNET_STATS_CONNECTIONS, bnet_stats_connection)
	BNET_STATS_CONNECTION(OF_CONNECTION, OF_CONNECTION)
	BNET_CONN_COUNTERS(OF_CONNECTION)
	BNET_STATS_LATENCY(OF_CONNECTION)
	TABLE("stream", streams, BNET_STATS_STREAMS, bnet_stats_stream)
	BNET_STATS_STREAM(OF_STREAM, OF_STREAM)
	TABLE("operation", operations, BNET_STATS_OPERATIONS, bnet_stats_operation)
	BNET_STATS_OPERATION(OF_OPERATION, OF_OPERATION)
}

/* ---- the process ---- */

void bnet_stats_configure(void)
{
	bnet_row_configure(&stats.process);
}

#define WRITE_ROW(at, row)                                    \
	do {                                                  \
		(row)->begins = (row)->ends = ++stats.writes; \
		bnet_segment_write(at, row, sizeof(*(row)));  \
	} while (0)

#define AT_CONNECTION(i) (offsetof(struct segment, connections) + (size_t)(i) * sizeof(struct bnet_stats_connection))
#define AT_STREAM(i) (offsetof(struct segment, streams) + (size_t)(i) * sizeof(struct bnet_stats_stream))
#define AT_OPERATION(i) (offsetof(struct segment, operations) + (size_t)(i) * sizeof(struct bnet_stats_operation))

/* 0: never. */
static uint64_t wall_us_of(uint64_t at_ms)
{
	return at_ms ? bnet_wall_us() - (bnet_now_ms() - at_ms) * 1000 : 0;
}

static void publish_process(void)
{
	bnet_row_of_process(&stats.process);
	stats.process.connections_left_out = stats.left_out;
	stats.process.streams_left_out = stats.streams_left_out;
	stats.connecting = bnet_connecting_now();
	stats.process.connecting = stats.connecting.count;
	stats.process.connecting_since_us = wall_us_of(stats.connecting.since_ms);
	stats.process.events_dropped = bnet_trace_dropped();
	WRITE_ROW(offsetof(struct segment, process), &stats.process);
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

/* To ask for it takes tens of µs: once a round. */
static const struct bnet_device_row *device_of(const struct bnet_device *dev)
{
	struct bnet_device_row *row = &stats.devices[bnet_device_number(dev)];

	if (row->round != stats.round)
		*row = (struct bnet_device_row){.round = stats.round,
						.at_us = bnet_wall_us(),
						.traffic = bnet_device_traffic(dev)};
	return row;
}

static void publish_stream(const struct bnet_conn *conn, struct bnet_stream *stream)
{
	struct bnet_stats_stream row;
	int at = row_for(&stream->row, stats.of_stream, BNET_STATS_STREAMS);

	if (at < 0) {
		stats.streams_left_out++;
		return;
	}
	stats.of_stream[at] = stats.round;
	bnet_row_of_stream(&row, conn, stream);
	WRITE_ROW(AT_STREAM(at), &row);
}

/* False: there is no row for it. */
static bool publish_connection(struct bnet_conn *conn)
{
	struct bnet_stats_connection row;
	int at = row_for(&conn->seen.row, stats.of_connection, BNET_STATS_CONNECTIONS);

	if (conn->seen.opened_us == 0)
		conn->seen.opened_us = bnet_wall_us();
	if (at < 0) {
		stats.left_out++;
		return false;
	}
	stats.of_connection[at] = stats.round;
	bnet_row_of_connection(&row, conn, device_of(conn->dev));
	WRITE_ROW(AT_CONNECTION(at), &row);
	return true;
}

/* A receiver may have more that were reset. */
static int streams_of(const struct bnet_conn *conn)
{
	return conn->nstreams < BNET_MAX_STREAMS ? conn->nstreams : BNET_MAX_STREAMS;
}

/* Streams whose connection has no row would take those of others, and no reader could use them. Returns how many were
 * read. */
static int publish_with_streams(struct bnet_conn *conn)
{
	const int streams = streams_of(conn);

	if (!publish_connection(conn)) {
		stats.streams_left_out += (uint64_t)streams;
		return 0;
	}
	for (int i = 0; i < streams; i++)
		publish_stream(conn, conn->streams[i]);
	return streams;
}

/* True: something runs, or has begun since the last time. */
static bool publish_operations(void)
{
	struct bnet_stats_operation row;
	struct bnet_operation operation;
	uint64_t running = 0, begun = 0;
	bool news;

	for (int i = 0; i < BNET_STATS_OPERATIONS && stats.read_operation && stats.read_operation(i, &operation); i++) {
		bnet_row_of_operation(&row, &operation);
		if (row.used)
			WRITE_ROW(AT_OPERATION(i), &row);
		running += row.running;
		begun += row.calls + row.failed + row.running;
	}
	news = running || begun != stats.operations;
	stats.operations = begun;
	return news;
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
		streams += publish_with_streams(conn);
	}
	return true;
}

bool bnet_stats_publish(void)
{
	if (!stats.tried)
		begin();
	if (!stats.shown)
		return false;
	if (bnet_trace_has_more()) {
		stats.traced = bnet_trace_look(bnet_segment_path());
		return bnet_trace_has_more();
	}
	if (!stats.under_way) {
		stats.under_way = true;
		stats.left_out = stats.streams_left_out = 0;
		if (++stats.round == 0)
			stats.round = 1;
	}
	if (!go_on())
		return true;
	sweep();
	publish_operations();
	publish_process();
	stats.under_way = false;
	stats.traced = bnet_trace_look(bnet_segment_path());
	return bnet_trace_has_more();
}

void bnet_stats_show_operations(bnet_operation_reader *read)
{
	stats.read_operation = read;
}

bool bnet_stats_has_operations(void)
{
	return stats.shown && stats.read_operation;
}

void bnet_stats_publish_operations(void)
{
	if (bnet_stats_has_operations() && publish_operations())
		publish_process();
}

bool bnet_stats_is_behind(void)
{
	const struct bnet_connecting now = bnet_connecting_now();

	return stats.shown && (now.count != stats.connecting.count || now.since_ms != stats.connecting.since_ms);
}

bool bnet_stats_is_awaited(void)
{
	return stats.traced;
}

void bnet_stats_end(void)
{
	bnet_trace_end();
	if (stats.shown)
		bnet_segment_end();
	stats.shown = false;
	stats.tried = stats.under_way = stats.traced = false;
	memset(stats.of_connection, 0, sizeof(stats.of_connection));
	memset(stats.of_stream, 0, sizeof(stats.of_stream));
}

void bnet_stats_exit(void)
{
	stats.exiting = true;
	if (stats.shown)
		bnet_trace_remove(bnet_segment_path());
	bnet_segment_remove();
}

void bnet_stats_forget(void)
{
	bnet_trace_forget();
	bnet_segment_forget();
	stats.shown = false;
	bnet_stats_end();
}
