/* SPDX-License-Identifier: MIT
 *
 * What paths have learned, kept in /dev/shm: that of this process, which has an empty one of its own. Whatever stands
 * there is checked.
 */
#include "scaling/memory.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "check.h"
#include "engine/engine.h"
#include "scaling/path.h"
#include "scaling/path_sample.h"

#define SKIPPED 77

static char table[64];

static struct sockaddr_storage address(const char *text)
{
	struct sockaddr_storage storage = {.ss_family = AF_INET};

	check_int(inet_pton(AF_INET, text, &((struct sockaddr_in *)&storage)->sin_addr), 1);
	return storage;
}

static struct bnet_nic nic;

static struct bnet_device device(const char *name)
{
	struct bnet_device dev = {.speed_mbps = 10000, .nmembers = 1, .members = {&nic}};

	nic.addr = address("10.0.0.1");
	nic.mtu = 1500;
	snprintf(dev.name, sizeof(dev.name), "%s", name);
	return dev;
}

static const struct bnet_learned many = {.streams = 16, .rate = 1000000};

static void keep(const struct bnet_device *dev, const char *peer, struct bnet_learned learned)
{
	const struct sockaddr_storage addr = address(peer);

	bnet_memory_keep(dev, &addr, &learned);
}

/* 0: nothing is known. */
static int streams(const struct bnet_device *dev, const char *peer)
{
	const struct sockaddr_storage addr = address(peer);
	struct bnet_learned learned;

	return bnet_memory_recall(dev, &addr, &learned) ? learned.streams : 0;
}

static void forget(void)
{
	unlink(table);
}

static void a_path_is_remembered_until_something_changes(void)
{
	struct bnet_device dev = device("eth0"), other = device("eth1");
	const struct sockaddr_storage peer = address("10.0.0.2");
	struct bnet_learned learned;

	check_int(streams(&dev, "10.0.0.2"), 0);
	keep(&dev, "10.0.0.2", many);
	check(bnet_memory_recall(&dev, &peer, &learned));
	check_int(learned.streams, many.streams);
	check(learned.rate == many.rate);
	check_int(streams(&dev, "10.0.0.3"), 0);
	check_int(streams(&other, "10.0.0.2"), 0);
	dev.speed_mbps = 25000;
	check_int(streams(&dev, "10.0.0.2"), 0);
	dev.speed_mbps = 10000;
	nic.mtu = 9000;
	check_int(streams(&dev, "10.0.0.2"), 0);
	nic.mtu = 1500;
	nic.addr = address("10.0.0.7");
	check_int(streams(&dev, "10.0.0.2"), 0);
	nic.addr = address("10.0.0.1");
	keep(&dev, "10.0.0.2", (struct bnet_learned){.streams = 4});
	check_int(streams(&dev, "10.0.0.2"), 4);
	forget();
}

static off_t size_of_table(void)
{
	struct stat status;

	check_int(stat(table, &status), 0);
	return status.st_size;
}

static void it_is_bounded(void)
{
	const struct bnet_device dev = device("eth0");
	char peer[16];
	int known = 0;

	for (int i = 0; i < 20000; i++) {
		snprintf(peer, sizeof(peer), "10.1.%d.%d", i / 256, i % 256);
		keep(&dev, peer, many);
	}
	check(size_of_table() <= 4096 * 72);
	check_int(streams(&dev, peer), many.streams);
	for (int i = 0; i < 1000; i++) {
		snprintf(peer, sizeof(peer), "10.1.%d.%d", (19000 + i) / 256, (19000 + i) % 256);
		known += streams(&dev, peer) > 0;
	}
	check(known > 700); /* the latest ones */
	forget();
}

/* Each byte of a record in turn is another one, and the file ends anywhere. */
static void damaged_records_are_none(void)
{
	const struct bnet_device dev = device("eth0");
	uint8_t bytes[4096 * 72], zeros = 0;
	ssize_t size;
	off_t first = 0;
	int fd;

	keep(&dev, "10.0.0.2", many);
	fd = open(table, O_RDWR);
	size = pread(fd, bytes, sizeof(bytes), 0);
	check(size >= 72);
	while (bytes[first] == zeros)
		first++;
	for (off_t at = first; at < size; at++) {
		const uint8_t wrong = bytes[at] ^ 0x40;

		check_int(pwrite(fd, &wrong, 1, at), 1);
		check_int(streams(&dev, "10.0.0.2"), 0);
		check_int(pwrite(fd, &bytes[at], 1, at), 1);
	}
	check_int(streams(&dev, "10.0.0.2"), many.streams);
	for (off_t end = size - 1; end > size - 72; end--) {
		check_int(ftruncate(fd, end), 0);
		check_int(streams(&dev, "10.0.0.2"), 0);
	}
	close(fd);
	forget();
}

/* The check is right, what is said is not. */
static void what_cannot_be_is_not_believed(void)
{
	const struct bnet_device dev = device("eth0");
	static const struct bnet_learned impossible[] = {
		{.streams = 0},
		{.streams = 65},
		{.streams = -1},
		{.streams = 4, .rate = UINT64_MAX},
	};

	for (size_t i = 0; i < sizeof(impossible) / sizeof(impossible[0]); i++) {
		keep(&dev, "10.0.0.2", impossible[i]);
		check_int(streams(&dev, "10.0.0.2"), 0);
	}
	forget();
}

static void check_unused(void)
{
	const struct bnet_device dev = device("eth0");

	keep(&dev, "10.0.0.2", many);
	check_int(streams(&dev, "10.0.0.2"), 0);
	remove(table);
}

static void other_peoples_files_are_left_alone(void)
{
	static const char victim[] = "/dev/shm/victim";
	int fd = open(victim, O_CREAT | O_RDWR | O_CLOEXEC, 0600);
	struct stat status;

	close(fd);
	check_int(symlink(victim, table), 0);
	check_unused();
	check_int(stat(victim, &status), 0);
	check_int(status.st_size, 0);
	check_int(mkdir(table, 0700), 0);
	check_unused();
	check_int(mkfifo(table, 0600), 0);
	check_unused(); /* and nobody waits for its reader */
	close(open(table, O_CREAT | O_RDWR | O_CLOEXEC, 0600));
	check_int(chmod(table, 0666), 0);
	check_unused();
	check_int(link(victim, table), 0); /* the user's own, by somebody else */
	check_unused();
	check_int(stat(victim, &status), 0);
	check_int(status.st_size, 0);
	if (geteuid() == 0) {
		close(open(table, O_CREAT | O_RDWR | O_CLOEXEC, 0600));
		check_int(chown(table, 1234, 1234), 0);
		check_unused();
	}
}

static void only_the_user_may_read_it(void)
{
	const struct bnet_device dev = device("eth0");
	struct stat status;

	umask(0);
	keep(&dev, "10.0.0.2", many);
	check_int(stat(table, &status), 0);
	check_int(status.st_mode & 0777, 0600);
	forget();
}

/* A signal would end the job. */
static void a_limit_of_file_sizes_is_kept_to(void)
{
	struct rlimit before, small;

	check_int(getrlimit(RLIMIT_FSIZE, &before), 0);
	small = before;
	small.rlim_cur = 0;
	check_int(setrlimit(RLIMIT_FSIZE, &small), 0);
	check_unused();
	check_int(setrlimit(RLIMIT_FSIZE, &before), 0);
}

static void off_is_off(void)
{
	bnet_engine.config.path_memory = 0;
	check_unused();
	check_int(access(table, F_OK), -1);
	bnet_engine.config.path_memory = 1;
}

/* ---- what a path keeps when it ends ---- */

static void join(struct bnet_conn *conn, const struct bnet_device *dev)
{
	memset(conn, 0, sizeof(*conn));
	bnet_list_init(&conn->of_path);
	bnet_list_init(&conn->setup.missing);
	conn->dev = dev;
	conn->setup.peers[0] = address("10.0.0.2");
	check_int(bnet_path_join(conn), 0);
}

/* The level that it ends with was its own since the log had it last. */
static void leave(struct bnet_conn *conn, int level)
{
	conn->path->told = conn->path->scaler.level = level;
	bnet_path_leave(conn);
}

static void a_path_keeps_only_what_it_has_found_out(void)
{
	static struct bnet_conn conn;
	const struct bnet_device dev = device("eth0");

	bnet_list_init(&bnet_engine.paths);
	bnet_list_init(&bnet_engine.questions);
	bnet_engine.config.min_nstreams = 1;
	join(&conn, &dev);
	keep(&dev, "10.0.0.2", many); /* another process */
	leave(&conn, 1);              /* nothing has limited it */
	check_int(streams(&dev, "10.0.0.2"), many.streams);
	join(&conn, &dev); /* … also where it has recalled something */
	leave(&conn, 1);
	check_int(streams(&dev, "10.0.0.2"), many.streams);
	join(&conn, &dev);
	conn.path->limited = conn.path->scaler.idle = true; /* a minute of little work has lowered it */
	leave(&conn, 1);
	check_int(streams(&dev, "10.0.0.2"), many.streams);
	join(&conn, &dev);
	conn.path->limited = true;
	leave(&conn, 4);
	check_int(streams(&dev, "10.0.0.2"), 4);
	forget();
}

/* A trial that the end cuts off: the level before it is the path's, unless a bound has set it. */
static void a_trial_s_level_is_not_kept(void)
{
	static struct bnet_conn conn;
	const struct bnet_device dev = device("eth0");
	struct bnet_scaler *scaler;

	join(&conn, &dev);
	scaler = &conn.path->scaler;
	conn.path->limited = true;
	scaler->state = BNET_SCALER_RAISING;
	scaler->before = 8;
	scaler->most = 16;
	leave(&conn, 16);
	check_int(streams(&dev, "10.0.0.2"), 8);
	join(&conn, &dev);
	scaler = &conn.path->scaler;
	conn.path->limited = true;
	scaler->state = BNET_SCALER_LOWERING;
	scaler->before = scaler->most = 16;
	leave(&conn, 15);
	check_int(streams(&dev, "10.0.0.2"), 8);
	forget();
}

/* The first connection opens its streams once it moves, and they begin with the recalled rate. */
static void a_sample_in_which_nothing_moves_judges_nothing(void)
{
	static struct bnet_conn conn;
	const struct bnet_device dev = device("eth0");

	keep(&dev, "10.0.0.2", many);
	join(&conn, &dev);
	check_int(bnet_path_recalled(&conn), many.streams - 1);
	check(bnet_path_begin_sample(conn.path, 1000));
	bnet_path_judge(conn.path, 1000);
	check_int(bnet_path_recalled(&conn), many.streams - 1);
	bnet_path_leave(&conn);
	forget();
}

int main(void)
{
	/* Its own /dev/shm: the user's jobs go on with theirs. */
	if (unshare(CLONE_NEWNS) < 0 && unshare(CLONE_NEWUSER | CLONE_NEWNS) < 0)
		return SKIPPED;
	if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 || mount("none", "/dev/shm", "tmpfs", 0, NULL) < 0)
		return SKIPPED;
	snprintf(table, sizeof(table), "/dev/shm/bagua-net-paths-%u", (unsigned)geteuid());
	bnet_engine.config.path_memory = 1;
	a_path_is_remembered_until_something_changes();
	it_is_bounded();
	damaged_records_are_none();
	what_cannot_be_is_not_believed();
	other_peoples_files_are_left_alone();
	only_the_user_may_read_it();
	a_limit_of_file_sizes_is_kept_to();
	off_is_off();
	a_path_keeps_only_what_it_has_found_out();
	a_trial_s_level_is_not_kept();
	a_sample_in_which_nothing_moves_judges_nothing();
	return 0;
}
