/* SPDX-License-Identifier: MIT
 *
 * Sends whose acknowledgements are late are done by copies, of which a connection has a bounded amount: those that were
 * acknowledged make room for others, on whatever stream they are, and an idle connection keeps no memory for them.
 */
#include <fcntl.h>
#include <linux/sockios.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/descriptors.h"
#include "check.h"
#include "control/undelivered.h"
#include "engine/engine.h"
#include "tcp_pair.h"
#include "transport/conn.h"
#include "transport/progress.h"
#include "transport/request.h"

#define STREAMS 2
#define BYTES (256u << 10)
#define MOST_COPIED (16u << 20) /* that of retention.c */
#define DEADLINE_S 60

static struct bnet_config config = {.min_chunksize = 4096, .max_chunksize = 65536, .keepalive = 120, .repair = 1};
static struct bnet_device device = {.name = "unit", .address = ""};

static struct bnet_conn *sender, *receiver;
static char *memory, *there;

/* ---- interposed: what the kernel says of bytes that are not acknowledged ---- */

static bool acknowledges[STREAMS];

int ioctl(int fd, unsigned long request, ...)
{
	va_list arguments;
	void *value;

	va_start(arguments, request);
	value = va_arg(arguments, void *);
	va_end(arguments);
	if (request == SIOCOUTQ)
		for (int i = 0; sender && i < STREAMS; i++)
			if (sender->streams[i]->fd == fd) {
				*(int *)value =
					acknowledges[i] ? 0 : (int)atomic_load(&sender->streams[i]->delivery.written);
				return 0;
			}
	return (int)syscall(SYS_ioctl, fd, request, value);
}

static void open_ends(void)
{
	sender = bnet_conn_new(true, &device, &config, false);
	receiver = bnet_conn_new(false, &device, &config, false);
	check(sender && receiver);
	sender->repairs = receiver->repairs = true;
	for (int i = 0; i < STREAMS; i++) {
		struct bnet_stream_start start = {.serial = (uint32_t)i + 1};
		int pair[2];

		open_tcp_pair(pair);
		for (int end = 0; end < 2; end++) {
			bnet_fd_opened(pair[end]);
			check_int(fcntl(pair[end], F_SETFL, O_NONBLOCK), 0);
		}
		check_int(bnet_conn_add_stream(receiver, pair[1], &start), 0);
		check_int(bnet_conn_add_stream(sender, pair[0], &start), 0);
		/* So fast that it may have all of this under way. */
		bnet_estimator_begin(&sender->streams[i]->estimator, BNET_MAX_RATE);
	}
	atomic_store(&sender->level, STREAMS);
	memory = calloc(1, BYTES);
	there = calloc(1, BYTES);
}

/* One message. Returns when its send and its receive are done. */
static void pass(void)
{
	struct bnet_request *send = bnet_request_post(sender, memory, BYTES);
	struct bnet_request *receive = bnet_request_post(receiver, there, BYTES);

	check(send && receive);
	while (!atomic_load(&send->done) || !atomic_load(&receive->done)) {
		bnet_progress(sender);
		bnet_progress(receiver);
	}
	check_int(bnet_request_take(send), BYTES);
	check_int(bnet_request_take(receive), BYTES);
}

/* No edge of the kernel's tells of the other one, which has room. */
static void use(int stream)
{
	for (int i = 0; i < STREAMS; i++)
		sender->streams[i]->writable = i == stream;
}

/* The control thread looks until there is nothing to look at. */
static void an_idle_one_keeps_nothing(void)
{
	bnet_list_init(&bnet_engine.conns);
	bnet_table_init(&bnet_engine.senders_by_id);
	bnet_list_add(&bnet_engine.conns, &sender->node);
	bnet_table_add(&bnet_engine.senders_by_id, &sender->by_id, 1);
	check(bnet_undelivered_look());
	check_int(sender->copies.bytes, 0);
	check(sender->copies.kept > 0);
	while (bnet_undelivered_look()) /* the peer's kernel delays its last acknowledgement */
		usleep(1000);
	check_int(sender->copies.kept, 0);
	bnet_table_remove(&sender->by_id);
	bnet_list_remove(&sender->node);
}

int main(void)
{
	alarm(DEADLINE_S);
	open_ends();
	use(0);
	while (sender->copies.bytes + BYTES <= MOST_COPIED)
		pass();
	check(sender->copies.bytes > MOST_COPIED / 2);
	check(sender->streams[0]->ledger.count > 0);
	check_int(sender->streams[0]->ledger.held, 0);

	use(1);
	acknowledges[0] = true;
	pass();
	check(sender->streams[1]->ledger.count > 0);
	check_int(sender->streams[0]->ledger.count, 0);

	acknowledges[1] = true;
	an_idle_one_keeps_nothing();
	bnet_conn_free(sender);
	bnet_conn_free(receiver);
	free(memory);
	free(there);
	return 0;
}
