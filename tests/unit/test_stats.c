/* SPDX-License-Identifier: MIT
 *
 * The file in which a process shows itself, as a reader finds it.
 */
#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "bagua_net.h"
#include "common/clock.h"
#include "oneself.h"
#include "stats/layout.h"
#include "stats/segment.h"

#define DEADLINE_S 120
/* Each with a sender and a receiver of one stream: two more connections than there are rows. */
#define PAIRS (BNET_STATS_CONNECTIONS / 2 + 1)

static struct bnet_client client;
static char directory[] = "/tmp/bnet-stats-XXXXXX";

/* ---- the reader ---- */

/* Rows begin and end with one number. */
#define READ(row)                                                                    \
	do {                                                                         \
		check_int(pread(file, &(row), sizeof(row), (off_t)at), sizeof(row)); \
	} while ((row).begins != (row).ends)

static void path_of(char path[128], const char *name)
{
	snprintf(path, 128, "%s/bagua-net-stats-%u/%s", directory, (unsigned)geteuid(), name);
}

/* Opens this process's. -1: it is not there yet. */
static int find_file(void)
{
	char path[128], prefix[16];
	const struct dirent *entry;
	int file = -1;
	DIR *entries;

	path_of(path, "");
	snprintf(prefix, sizeof(prefix), "%d-", (int)getpid());
	entries = opendir(path);
	while (entries && file < 0 && (entry = readdir(entries)))
		if (strncmp(entry->d_name, prefix, strlen(prefix)) == 0)
			file = openat(dirfd(entries), entry->d_name, O_RDONLY | O_CLOEXEC);
	if (entries)
		closedir(entries);
	return file;
}

/* Its header is written last. */
static int open_file(void)
{
	struct bnet_stats_header header;
	int file;

	while ((file = find_file()) < 0)
		sched_yield();
	do
		check_int(pread(file, &header, sizeof(header), 0), sizeof(header));
	while (memcmp(header.magic, BNET_STATS_MAGIC, sizeof(header.magic)) != 0);
	return file;
}

static size_t table_at(int file, const char *name)
{
	struct bnet_stats_header header;
	static char text[16384];
	const char *found;
	char words[64];
	size_t at;

	check_int(pread(file, &header, sizeof(header), 0), sizeof(header));
	check(header.text_size < sizeof(text));
	check_int(pread(file, text, header.text_size, (off_t)header.text_at), header.text_size);
	text[header.text_size] = 0;
	snprintf(words, sizeof(words), "table %s ", name);
	found = strstr(text, words);
	check(found != NULL);
	check_int(sscanf(found + strlen(words), "%zu", &at), 1);
	return at;
}

static struct bnet_stats_process read_process(int file)
{
	const size_t at = table_at(file, "process");
	struct bnet_stats_process row;

	READ(row);
	return row;
}

/* Returns how many there are. */
static int read_connections(int file, uint64_t ids[BNET_STATS_CONNECTIONS])
{
	const size_t first = table_at(file, "connection");
	int count = 0;

	for (size_t i = 0; i < BNET_STATS_CONNECTIONS; i++) {
		const size_t at = first + i * sizeof(struct bnet_stats_connection);
		struct bnet_stats_connection row;

		READ(row);
		if (row.used)
			ids[count++] = row.id;
	}
	return count;
}

/* Returns how many of these connections there are. None is of another one. */
static int read_streams(int file, const uint64_t ids[BNET_STATS_CONNECTIONS], int connections)
{
	const size_t first = table_at(file, "stream");
	int count = 0;

	for (size_t i = 0; i < BNET_STATS_STREAMS; i++) {
		const size_t at = first + i * sizeof(struct bnet_stats_stream);
		struct bnet_stats_stream row;
		int of = 0;

		READ(row);
		if (!row.used)
			continue;
		while (of < connections && ids[of] != row.connection)
			of++;
		check(of < connections);
		count++;
	}
	return count;
}

/* ---- what others have left ---- */

/* Returns its descriptor. */
static int leave(const char *name, time_t seconds_ago)
{
	struct timespec times[2] = {{.tv_sec = time(NULL) - seconds_ago}};
	char path[128];
	int file;

	times[1] = times[0];
	path_of(path, name);
	file = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	check(file >= 0);
	check_int(futimens(file, times), 0);
	return file;
}

/* Removes it. False: it was not there. */
static bool is_left(const char *name)
{
	char path[128];

	path_of(path, name);
	return unlink(path) == 0;
}

static void the_youngest_of_what_is_left_is_kept(void)
{
	static const int ages[] = {5, 90, 1, 40, 20, 80, 10, 60, 70, 30, 50};
	char path[128], name[32];
	int awaited;

	path_of(path, "");
	check_int(mkdir(path, 0700), 0);
	for (size_t i = 0; i < sizeof(ages) / sizeof(ages[0]); i++) {
		snprintf(name, sizeof(name), "7-%d", ages[i]);
		close(leave(name, ages[i]));
	}
	close(leave("7-old", 5000));
	close(leave("7-old.trace", 5000));
	close(leave("7-young.trace", 5));
	close(leave("export.lock", 5000));
	awaited = leave("7-awaited.trace", 5000);
	check_int(flock(awaited, LOCK_EX), 0);
	check(bnet_segment_make(directory, 4096));
	bnet_segment_end();
	for (size_t i = 0; i < sizeof(ages) / sizeof(ages[0]); i++) {
		snprintf(name, sizeof(name), "7-%d", ages[i]);
		check_int(is_left(name), ages[i] <= 60);
	}
	check(!is_left("7-old"));
	check(!is_left("7-old.trace"));
	check(is_left("7-young.trace"));
	check(is_left("export.lock"));
	check(is_left("7-awaited.trace"));
	close(awaited);
}

/* ---- connections ---- */

static void streams_are_shown_with_their_connection(void)
{
	static struct oneself ends[PAIRS];
	static uint64_t ids[BNET_STATS_CONNECTIONS];
	struct bnet_stats_process process;
	int file;

	for (int i = 0; i < PAIRS; i++)
		ends[i] = connect_to_oneself(&client);
	file = open_file();
	do { /* until a round over all of them has ended */
		send_to_oneself(&client, ends[0]);
		process = read_process(file);
	} while (process.connections_left_out != 2);
	check_int(process.streams_left_out, 2);
	check_int(read_connections(file, ids), BNET_STATS_CONNECTIONS);
	check_int(read_streams(file, ids, BNET_STATS_CONNECTIONS), BNET_STATS_CONNECTIONS);
	close(file);
	for (int i = 0; i < PAIRS; i++)
		close_to_oneself(&client, ends[i]);
}

/* In a process of its own: its handle goes to `out`, and it is stopped until the peer is to be answered. */
static void accept_later(int out)
{
	char handle[NCCL_NET_HANDLE_MAXSIZE] = {0};
	void *listen, *conn = NULL;

	check_int(prctl(PR_SET_PDEATHSIG, SIGKILL), 0); /* who is stopped heeds no alarm */
	check_int(bnet_client_init(&client, bnet_net_table(12), 12, print_warnings), ncclSuccess);
	check_int(bnet_client_listen(&client, 0, handle, &listen), ncclSuccess);
	check_int(write(out, handle, sizeof(handle)), sizeof(handle));
	raise(SIGSTOP);
	while (!conn)
		check_int(bnet_client_accept(&client, listen, &conn), ncclSuccess);
	check_int(bnet_client_close_recv(&client, conn), ncclSuccess);
	check_int(bnet_client_close_listen(&client, listen), ncclSuccess);
	check_int(bnet_client_finalize(&client), ncclSuccess);
	while (control_runs())
		sched_yield();
	_exit(0);
}

static struct bnet_stats_process await_connecting(int file, uint64_t count)
{
	struct bnet_stats_process process;

	do
		process = read_process(file);
	while (process.connecting != count);
	return process;
}

/* Also where nothing moves on any other connection. */
static void connections_are_shown_while_they_are_made(pid_t child, int in)
{
	char handle[NCCL_NET_HANDLE_MAXSIZE];
	struct oneself ends = connect_to_oneself(&client);
	static uint64_t ids[BNET_STATS_CONNECTIONS];
	struct bnet_stats_process process;
	uint64_t began_us;
	void *conn = NULL;
	int file, status;

	check_int(read(in, handle, sizeof(handle)), sizeof(handle));
	check_int(waitpid(child, &status, WUNTRACED), child);
	check(WIFSTOPPED(status));
	send_to_oneself(&client, ends);
	file = open_file();
	process = await_connecting(file, 0);
	check_int(process.connecting_since_us, 0);
	began_us = bnet_wall_us();
	check_int(bnet_client_connect(&client, 0, handle, &conn), ncclSuccess);
	check(conn == NULL);
	process = await_connecting(file, 1);
	check(process.connecting_since_us > began_us - 100000); /* the engine counts ms */
	check(process.connecting_since_us <= bnet_wall_us());
	check_int(kill(child, SIGCONT), 0);
	while (!conn)
		check_int(bnet_client_connect(&client, 0, handle, &conn), ncclSuccess);
	await_connecting(file, 0);
	check_int(read_connections(file, ids), 3);
	close(file);
	check_int(bnet_client_close_send(&client, conn), ncclSuccess);
	close_to_oneself(&client, ends);
	check_int(waitpid(child, &status, 0), child);
	check_int(status, 0);
}

static void end(void)
{
	char own[128];

	while (control_runs())
		sched_yield();
	path_of(own, "");
	check_int(rmdir(own), 0); /* it is empty */
	check_int(rmdir(directory), 0);
}

int main(void)
{
	struct rlimit files;
	int handles[2];
	pid_t child;

	alarm(DEADLINE_S);
	check_int(getrlimit(RLIMIT_NOFILE, &files), 0);
	files.rlim_cur = files.rlim_max;
	check_int(setrlimit(RLIMIT_NOFILE, &files), 0);
	check(mkdtemp(directory) != NULL);
	the_youngest_of_what_is_left_is_kept();
	setenv("NCCL_SOCKET_IFNAME", "lo", 1);
	setenv("BAGUA_NET_STATS_DIR", directory, 1);
	setenv("BAGUA_NET_NSTREAMS", "1", 1);
	setenv("BAGUA_NET_MIN_NSTREAMS", "1", 1);
	check_int(pipe(handles), 0);
	child = fork();
	check(child >= 0);
	if (child == 0)
		accept_later(handles[1]);
	check_int(bnet_client_init(&client, bnet_net_table(12), 12, print_warnings), ncclSuccess);
	connections_are_shown_while_they_are_made(child, handles[0]);
	while (control_runs())
		sched_yield();
	streams_are_shown_with_their_connection();
	check_int(bnet_client_finalize(&client), ncclSuccess);
	end();
	return 0;
}
