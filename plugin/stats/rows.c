/* SPDX-License-Identifier: MIT
 *
 * See rows.h.
 */
#include "stats/rows.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/address.h"
#include "base/tcp_info.h"
#include "common/clock.h"
#include "engine/engine.h"
#include "scaling/path.h"

#define ONE(name) +1
static_assert(0 BNET_STATS_LATENCY(ONE) == BNET_LATENCIES, "a field for each of them");

/* ---- of the process ---- */

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

void bnet_row_configure(struct bnet_stats_process *process)
{
	static const char *const rank[] = {"RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID", NULL};
	static const char *const size[] = {"WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS", NULL};
	static const char *const local[] = {"LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID",
					    "SLURM_LOCALID", NULL};
	static const char *const job[] = {"SLURM_JOB_ID", "TORCHELASTIC_RUN_ID", NULL};

	copy_first(process->rank, rank);
	copy_first(process->world_size, size);
	copy_first(process->local_rank, local);
	copy_first(process->job, job);
	copy_text(process->version, BNET_VERSION);
	copy_text(process->program, program_invocation_short_name);
	gethostname(process->host, sizeof(process->host) - 1);
}

static uint64_t us_of(struct timeval time)
{
	return (uint64_t)time.tv_sec * 1000000 + (uint64_t)time.tv_usec;
}

struct bnet_connecting bnet_connecting_now(void)
{
	struct bnet_connecting found = {.count = 0};

	bnet_list_each(node, &bnet_engine.attempts) {
		const struct bnet_conn *conn = bnet_entry(node, struct bnet_conn, setup.pending);

		if (conn->setup.ready || atomic_load_explicit(&conn->error, memory_order_relaxed))
			continue;
		if (found.count++ == 0 || conn->setup.started_ms < found.since_ms)
			found.since_ms = conn->setup.started_ms;
	}
	return found;
}

void bnet_row_of_process(struct bnet_stats_process *process)
{
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
	process->published_us = bnet_wall_us();
}

/* ---- of a connection ---- */

/* The scaler has another clock. */
static uint64_t wall_us(uint64_t at_us)
{
	return at_us ? bnet_wall_us() - (bnet_now_us() - at_us) : 0;
}

#define FILL_VERDICT(row, name, verdict)                          \
	do {                                                      \
		(row)->name##_us = wall_us((verdict)->at_us);     \
		(row)->name##_fewer = (uint64_t)(verdict)->fewer; \
		(row)->name##_more = (uint64_t)(verdict)->more;   \
		(row)->name##_with_fewer = (verdict)->with_fewer; \
		(row)->name##_with_more = (verdict)->with_more;   \
	} while (0)

static void fill_latencies(struct bnet_stats_connection *row, const struct bnet_latencies *latencies)
{
	int i = 0;

	row->latency_us = atomic_load_explicit(&latencies->sum_us, memory_order_relaxed);
#define X(name) row->name = atomic_load_explicit(&latencies->below[i++], memory_order_relaxed);
	BNET_STATS_LATENCY(X)
#undef X
}

void bnet_row_of_connection(struct bnet_stats_connection *row, const struct bnet_conn *conn,
			    const struct bnet_device_row *device)
{
	*row = (struct bnet_stats_connection){
		.used = 1,
		.id = conn->id,
		.communicator = conn->communicator,
		.sender = conn->sender,
		.opened_us = conn->seen.opened_us,
		.published_us = bnet_wall_us(),
		.error = (uint64_t)-atomic_load_explicit(&conn->error, memory_order_relaxed),
		.streams = (uint64_t)conn->nstreams,
		.level = (uint64_t)atomic_load_explicit(&conn->level, memory_order_relaxed),
		.most = (uint64_t)(conn->path ? bnet_path_most(conn) : conn->setup.most),
		.outstanding = bnet_conn_outstanding(conn),
		.posted_us = conn->seen.posted_us,
		.still_us = bnet_conn_has_work(conn) ? conn->seen.still_us : 0,
		.local_peer = conn->setup.local,
		.device_us = device->at_us,
		.device_sent = device->traffic.sent,
		.device_received = device->traffic.received,
		.device_mbps = conn->dev->speed_known ? (uint64_t)conn->dev->speed_mbps : 0,
	};
	copy_text(row->device, conn->dev->name);
	copy_text(row->peer, conn->peer);
#define X(name) row->name = atomic_load_explicit(&conn->counts.name, memory_order_relaxed);
	BNET_CONN_COUNTERS(X)
#undef X
	if (conn->path) {
		FILL_VERDICT(row, kept, &conn->path->scaler.kept);
		FILL_VERDICT(row, refused, &conn->path->scaler.refused);
	}
	fill_latencies(row, &conn->latencies);
}

/* ---- of operations ---- */

void bnet_row_of_operation(struct bnet_stats_operation *row, const struct bnet_operation *operation)
{
	*row = (struct bnet_stats_operation){
		.used = operation->calls || operation->failed || operation->running,
		.calls = operation->calls,
		.failed = operation->failed,
		.bytes = operation->bytes,
		.time_us = operation->time_us,
		.waiting_us = operation->waiting_us,
		.running = operation->running,
		.began_us = operation->began_us,
	};
	copy_text(row->operation, operation->name);
}

/* ---- of a stream ---- */

void bnet_row_of_stream(struct bnet_stats_stream *row, const struct bnet_conn *conn, const struct bnet_stream *stream)
{
	struct sockaddr_storage addr;
	socklen_t size = sizeof(addr), name = sizeof(row->congestion_control);
	char text[BNET_ADDRESS_TEXT];
	struct bnet_tcp_info info;

	bnet_tcp_info_read(stream->fd, &info, 0);
	*row = (struct bnet_stats_stream){
		.used = 1,
		.connection = conn->id,
		.sender = conn->sender,
		.serial = stream->serial,
		.bytes_acked = info.bytes_acked,
		.bytes_received = info.bytes_received,
		.busy_us = info.busy_time,
		.rwnd_limited_us = info.rwnd_limited,
		.sndbuf_limited_us = info.sndbuf_limited,
		.rtt_us = info.rtt,
		.rttvar_us = info.rttvar,
		.min_rtt_us = info.min_rtt,
		.delivery_rate = info.delivery_rate,
		.congestion_window = info.snd_cwnd,
		.segment = info.snd_mss,
		.segments_sent = info.data_segs_out,
		.segments_received = info.data_segs_in,
		.retransmits = info.total_retrans,
		.unacked = info.unacked,
		.probes = info.probes,
		.unsent = info.notsent_bytes,
		.silent_us = (uint64_t)(info.last_ack_received < info.last_data_received ? info.last_ack_received
											 : info.last_data_received) *
			     1000,
		.broken = stream->broken,
	};
	if (getsockname(stream->fd, (struct sockaddr *)&addr, &size) == 0)
		copy_text(row->local, bnet_address_text(&addr, text));
	size = sizeof(addr);
	if (getpeername(stream->fd, (struct sockaddr *)&addr, &size) == 0)
		copy_text(row->remote, bnet_address_text(&addr, text));
	getsockopt(stream->fd, IPPROTO_TCP, TCP_CONGESTION, row->congestion_control, &name);
	row->congestion_control[BNET_STATS_TEXT - 1] = 0;
}
