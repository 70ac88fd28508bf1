/* SPDX-License-Identifier: MIT
 *
 * A sender whose streams are at their in-flight limits writes nothing. It learns of its peer's death nevertheless.
 */
#include <sys/socket.h>
#include <unistd.h>

#include "check.h"
#include "stream_pairs.h"
#include "transport/conn.h"
#include "transport/progress.h"
#include "transport/request.h"

#define STREAMS 2
#define BYTES 100000 /* less than a socket takes */
#define PASSES 4

static struct bnet_conn *conn;
static int peers[STREAMS];
static char from[BYTES];

/* So slow that a stream may hold one slice. */
static void open_slow_streams(void)
{
	conn = open_stream_pairs(true, peers, STREAMS);
	for (int i = 0; i < STREAMS; i++)
		atomic_store(&conn->streams[i]->estimator.rate, 1);
	atomic_store(&conn->level, STREAMS);
}

static void make_passes(int passes)
{
	for (int i = 0; i < passes; i++)
		bnet_progress(conn);
}

int main(void)
{
	open_slow_streams();
	check(bnet_request_post(conn, from, BYTES) != NULL);
	while (bnet_progress(conn))
		;
	for (int i = 0; i < STREAMS; i++)
		check(conn->streams[i]->writable && !conn->streams[i]->out.active);
	make_passes(PASSES);
	check_int(conn->error, 0);
	check(bnet_conn_has_work(conn));
	for (int i = 0; i < STREAMS; i++)
		close(peers[i]);
	make_passes(PASSES);
	check(conn->error < 0);
	bnet_conn_free(conn);
	return 0;
}
