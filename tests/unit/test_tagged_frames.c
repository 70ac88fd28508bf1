/* SPDX-License-Identifier: MIT
 *
 * The frames of the tagged messages, as a peer sees them: rank 0 uses tagged messages, rank 1 sends and receives single
 * frames, which may be wrong, late or its last ones.
 */
#include <errno.h>
#include <sched.h>
#include <unistd.h>

#include "bagua_net.h"
#include "bagua_net_host.h"
#include "check.h"
#include "coll/connect.h"
#include "ranks.h"
#include "tagged/frame.h"

#define DEADLINE_S 250 /* of the whole program */
#define EAGER ((size_t)4096)
#define COST (EAGER + sizeof(struct bnet_tagged_frame))
#define LARGE ((size_t)20000)
#define MANY 100 /* EAGER messages: more than the window has room for */

/* ---- rank 0 ---- */

struct endpoint {
	struct rank *rank;
	bnet_tagged_t *tagged;
	size_t posted, over;
	int rc[MANY + 10]; /* by id */
	char errors[MANY + 10][256];
	char *buf;
};

static void open_endpoint(struct endpoint *self, struct rank *rank)
{
	memset(self, 0, sizeof(*self));
	self->rank = rank;
	check_int(bnet_tagged_create(&self->tagged, rank->coll, rank->group->rows), 0);
	rank->coll = NULL; /* belongs to the messages from now on */
	rank->group->shared[0] = (char *)self->tagged;
	self->buf = calloc(1, 64 * BNET_COLL_CHUNK);
	check(self->buf != NULL);
}

static void close_endpoint(struct endpoint *self)
{
	bnet_tagged_destroy(self->tagged);
	free(self->buf);
}

static uint64_t post_send(struct endpoint *self, size_t bytes, int64_t tag)
{
	check_int(bnet_tagged_send(self->tagged, self->buf, bytes, 1, tag, self->posted), 0);
	return self->posted++;
}

static uint64_t post_recv(struct endpoint *self, size_t bytes, int64_t tag)
{
	check_int(bnet_tagged_recv(self->tagged, self->buf, bytes, 1, tag, self->posted), 0);
	return self->posted++;
}

/* Until all posted operations are complete. */
static void finish(struct endpoint *self)
{
	bnet_tagged_done_t done[7];

	while (self->over < self->posted) {
		int count = bnet_tagged_progress(self->tagged, done, 7);

		check(count > 0);
		for (int i = 0; i < count; i++, self->over++) {
			self->rc[done[i].id] = done[i].rc;
			snprintf(self->errors[done[i].id], sizeof(self->errors[0]), "%s",
				 done[i].error != NULL ? done[i].error : "");
		}
	}
}

/* Networks do not agree on the result code for a lost peer. */
static void check_ended(const struct endpoint *self, uint64_t id, int rc)
{
	const char *word = rc == -EREMOTEIO ? "lost rank 1" : rc == -EPROTO ? "rank 1" : "";

	if (rc != -EREMOTEIO || self->rc[id] != -EIO)
		check_int(self->rc[id], rc);
	check(strstr(self->errors[id], word) != NULL);
}

static void receive_large(struct endpoint *self, int rc)
{
	const uint64_t id = post_recv(self, LARGE, 9);

	finish(self);
	check_ended(self, id, rc);
}

static void send_large(struct endpoint *self, int rc)
{
	const uint64_t id = post_send(self, 64 * BNET_COLL_CHUNK, 9);

	finish(self);
	check_ended(self, id, rc);
}

/* ---- rank 1 ---- */

struct raw {
	struct rank *rank;
	struct bnet_coll *coll;
	void *out_mhandle, *in_mhandle;
	size_t messages;   /* received */
	size_t at, in_end; /* the frames of the last one that are not taken yet */
	char out[BNET_COLL_CHUNK], in[BNET_COLL_CHUNK];
};

static struct bnet_coll_peer *rank_0(const struct raw *raw)
{
	return &raw->coll->peers[0];
}

static struct raw *new_raw(struct rank *rank)
{
	struct raw *raw = calloc(1, sizeof(*raw));

	check(raw != NULL);
	raw->rank = rank;
	raw->coll = rank->coll;
	check_int(bnet_coll_take_rows(raw->coll, rank->group->rows), 0);
	return raw;
}

static void connect_raw(struct raw *raw)
{
	bool progress = false;

	for (; rank_0(raw)->send.comm == NULL; sched_yield())
		check_int(bnet_coll_try_connect(raw->coll, 0, &progress), 0);
	check_int(bnet_client_reg(&raw->coll->client, rank_0(raw)->send.comm, raw->out, sizeof(raw->out), NCCL_PTR_HOST,
				  &raw->out_mhandle),
		  ncclSuccess);
}

static void accept_raw(struct raw *raw)
{
	bool progress = false;

	for (; rank_0(raw)->recv.comm == NULL; sched_yield())
		check_int(bnet_coll_try_accept(raw->coll, 0, &progress), 0);
	check_int(bnet_client_reg(&raw->coll->client, rank_0(raw)->recv.comm, raw->in, sizeof(raw->in), NCCL_PTR_HOST,
				  &raw->in_mhandle),
		  ncclSuccess);
}

static void stop_receiving(struct raw *raw)
{
	struct bnet_coll_peer *peer = rank_0(raw);

	if (raw->in_mhandle != NULL) {
		bnet_client_dereg(&raw->coll->client, peer->recv.comm, raw->in_mhandle);
		bnet_client_close_recv(&raw->coll->client, peer->recv.comm);
	}
	raw->in_mhandle = peer->recv.comm = NULL;
}

/* Both connections end, as if the process died. */
static void free_raw(struct raw *raw)
{
	stop_receiving(raw);
	if (raw->out_mhandle != NULL)
		bnet_client_dereg(&raw->coll->client, rank_0(raw)->send.comm, raw->out_mhandle);
	bnet_coll_destroy(raw->coll);
	raw->rank->coll = NULL;
	free(raw);
}

/* Sends the first bytes of out. */
static void send_raw(struct raw *raw, size_t bytes)
{
	const struct bnet_client *client = &raw->coll->client;
	void *request = NULL;
	int done = 0;

	for (; request == NULL; sched_yield())
		check_int(bnet_client_isend(client, rank_0(raw)->send.comm, raw->out, bytes, 0, raw->out_mhandle,
					    &request),
			  ncclSuccess);
	for (; !done; sched_yield())
		check_int(bnet_client_test(client, request, &done, NULL), ncclSuccess);
}

static void send_frame(struct raw *raw, struct bnet_tagged_frame frame)
{
	memcpy(raw->out, &frame, sizeof(frame));
	send_raw(raw, sizeof(frame) + (frame.kind == BNET_TAGGED_EAGER ? frame.bytes : 0));
}

static void receive_message(struct raw *raw)
{
	const struct bnet_client *client = &raw->coll->client;
	void *request = NULL;
	int done = 0, bytes = 0;

	for (; request == NULL; sched_yield())
		check_int(bnet_client_irecv(client, rank_0(raw)->recv.comm, raw->in, sizeof(raw->in), 0,
					    raw->in_mhandle, &request),
			  ncclSuccess);
	for (; !done; sched_yield())
		check_int(bnet_client_test(client, request, &done, &bytes), ncclSuccess);
	raw->messages++;
	raw->at = 0;
	raw->in_end = (size_t)bytes;
}

/* The next one of a message, which holds at least one, and nothing else. */
static struct bnet_tagged_frame receive_frame(struct raw *raw)
{
	struct bnet_tagged_frame frame;

	if (raw->at == raw->in_end)
		receive_message(raw);
	check(raw->in_end - raw->at >= sizeof(frame));
	memcpy(&frame, raw->in + raw->at, sizeof(frame));
	raw->at += sizeof(frame) + (frame.kind == BNET_TAGGED_EAGER ? frame.bytes : 0);
	check(raw->at <= raw->in_end);
	return frame;
}

static struct bnet_tagged_frame receive_kind(struct raw *raw, uint64_t kind)
{
	struct bnet_tagged_frame frame = receive_frame(raw);

	while (frame.kind == BNET_TAGGED_CREDIT && frame.credit == 0) /* a probe */
		frame = receive_frame(raw);
	check_int(frame.kind, kind);
	return frame;
}

/* ---- the window ---- */

/* EAGER as long as the window has room, then RTS; credit makes room again. */
static void window_raw(struct raw *raw)
{
	const size_t room = BNET_TAGGED_WINDOW / COST;

	accept_raw(raw);
	connect_raw(raw);
	for (size_t i = 0; i < room; i++)
		receive_kind(raw, BNET_TAGGED_EAGER);
	for (size_t i = room; i < MANY; i++) {
		const struct bnet_tagged_frame rts = receive_kind(raw, BNET_TAGGED_RTS);

		send_frame(raw, (struct bnet_tagged_frame){.kind = BNET_TAGGED_CTS,
							   .key = rts.key,
							   .bytes = EAGER + 1,
							   .credit = i == room ? room * COST : 0});
	}
	check(raw->messages < room + (MANY - room) / 2); /* requests travel together */
	receive_kind(raw, BNET_TAGGED_EAGER);
}

static void window_endpoint(struct endpoint *self, int rc)
{
	for (size_t i = 0; i < MANY; i++)
		post_send(self, EAGER, 0);
	finish(self);
	for (size_t i = 0; i < MANY; i++)
		check_int(self->rc[i], i < BNET_TAGGED_WINDOW / COST ? 0 : rc);
	post_send(self, EAGER, 0);
	finish(self);
	check_int(self->rc[MANY], 0);
}

/* A rank that only receives returns credit as well, once it has a connection. */
static void credit_raw(struct raw *raw)
{
	const size_t room = BNET_TAGGED_WINDOW / 2 / COST + 1;

	connect_raw(raw);
	send_frame(raw, (struct bnet_tagged_frame){.kind = BNET_TAGGED_RTS, .key = 1, .tag = 1});
	accept_raw(raw);
	receive_kind(raw, BNET_TAGGED_CTS);
	for (size_t i = 0; i < room; i++)
		send_frame(raw, (struct bnet_tagged_frame){.kind = BNET_TAGGED_EAGER, .bytes = EAGER});
	check_int(receive_kind(raw, BNET_TAGGED_CREDIT).credit, room * COST);
	bnet_tagged_stop((bnet_tagged_t *)raw->rank->group->shared[0]);
}

static void credit_endpoint(struct endpoint *self, int rc)
{
	bnet_tagged_done_t done;

	post_recv(self, 0, 1);
	for (size_t i = 0; i < BNET_TAGGED_WINDOW / 2 / COST + 1; i++)
		post_recv(self, EAGER, 0);
	finish(self);
	check_int(bnet_tagged_progress(self->tagged, &done, 1), rc); /* it is still working */
}

/* A peer that exceeds the window is lost. */
static void flood_raw(struct raw *raw)
{
	connect_raw(raw);
	for (size_t i = 0; i <= BNET_TAGGED_WINDOW / COST; i++)
		send_frame(raw, (struct bnet_tagged_frame){.kind = BNET_TAGGED_EAGER, .bytes = EAGER});
}

/* ---- malformed frames ---- */

static void short_raw(struct raw *raw)
{
	connect_raw(raw);
	raw->out[0] = BNET_TAGGED_CREDIT;
	send_raw(raw, sizeof(struct bnet_tagged_frame) - 1);
}

static void long_raw(struct raw *raw)
{
	connect_raw(raw);
	raw->out[0] = BNET_TAGGED_CREDIT;
	send_raw(raw, sizeof(struct bnet_tagged_frame) + 1);
}

static void kind_0_raw(struct raw *raw)
{
	connect_raw(raw);
	send_frame(raw, (struct bnet_tagged_frame){.kind = 0});
}

static void kind_6_raw(struct raw *raw)
{
	connect_raw(raw);
	send_frame(raw, (struct bnet_tagged_frame){.kind = BNET_TAGGED_CREDIT + 1});
}

static void eager_of_another_size_raw(struct raw *raw)
{
	const struct bnet_tagged_frame frame = {.kind = BNET_TAGGED_EAGER, .bytes = UINT64_MAX};

	connect_raw(raw);
	memcpy(raw->out, &frame, sizeof(frame));
	send_raw(raw, sizeof(frame) + 5);
}

static void too_much_credit_raw(struct raw *raw)
{
	connect_raw(raw);
	send_frame(raw, (struct bnet_tagged_frame){.kind = BNET_TAGGED_CREDIT, .credit = 1});
}

static void unknown_cts_raw(struct raw *raw)
{
	connect_raw(raw);
	send_frame(raw, (struct bnet_tagged_frame){.kind = BNET_TAGGED_CTS, .key = 5, .bytes = 1});
}

static void unknown_data_raw(struct raw *raw)
{
	connect_raw(raw);
	send_frame(raw, (struct bnet_tagged_frame){.kind = BNET_TAGGED_DATA, .key = 5, .bytes = LARGE});
}

/* ---- a large message, received ---- */

static void granting_raw(struct raw *raw)
{
	connect_raw(raw);
	send_frame(raw, (struct bnet_tagged_frame){.kind = BNET_TAGGED_RTS, .key = 5, .tag = 9, .bytes = LARGE});
	accept_raw(raw);
	check_int(receive_kind(raw, BNET_TAGGED_CTS).key, 5);
}

/* What a rank of another host offers is asked for, and never read in this one's memory. */
static void offering_raw(struct raw *raw)
{
	static char message[LARGE];
	static uint64_t token = 77;
	const struct bnet_tagged_frame frame = {.kind = BNET_TAGGED_OFFER, .key = 5, .tag = 9, .bytes = LARGE};
	const struct bnet_tagged_offer offer = {.process = getpid(),
						.buffer = (uintptr_t)message,
						.token_at = (uintptr_t)&token,
						.token = token};

	connect_raw(raw);
	memcpy(raw->out, &frame, sizeof(frame));
	memcpy(raw->out + sizeof(frame), &offer, sizeof(offer));
	send_raw(raw, sizeof(frame) + sizeof(offer));
	accept_raw(raw);
	check_int(receive_kind(raw, BNET_TAGGED_CTS).key, 5);
}

static void begin_data(struct raw *raw)
{
	granting_raw(raw);
	send_frame(raw, (struct bnet_tagged_frame){.kind = BNET_TAGGED_DATA, .key = 5, .bytes = LARGE});
}

static void data_of_another_size_raw(struct raw *raw)
{
	granting_raw(raw);
	send_frame(raw, (struct bnet_tagged_frame){.kind = BNET_TAGGED_DATA, .key = 5, .bytes = LARGE - 1});
}

/* Chunks follow a DATA, not another frame. */
static void frame_after_data_raw(struct raw *raw)
{
	const struct bnet_tagged_frame frames[] = {{.kind = BNET_TAGGED_DATA, .key = 5, .bytes = LARGE},
						   {.kind = BNET_TAGGED_CREDIT}};

	granting_raw(raw);
	memcpy(raw->out, frames, sizeof(frames));
	send_raw(raw, sizeof(frames));
}

static void short_chunk_raw(struct raw *raw)
{
	begin_data(raw);
	send_raw(raw, LARGE - 1);
}

/* A closed connection reads and discards for a moment: wait until its sockets are gone. */
static void stop_receiving_and_drain(struct raw *raw)
{
	bnet_counters_t before, now;

	bnet_counters(&before);
	stop_receiving(raw);
	for (now = before; now.descriptors >= before.descriptors; sched_yield())
		bnet_counters(&now);
}

/* The peer receives nothing any more, and completes the DATA that it has begun: its connections are independent. */
static void last_data_raw(struct raw *raw)
{
	granting_raw(raw);
	stop_receiving_and_drain(raw);
	send_frame(raw, (struct bnet_tagged_frame){.kind = BNET_TAGGED_EAGER, .tag = 4});
	send_frame(raw, (struct bnet_tagged_frame){.kind = BNET_TAGGED_DATA, .key = 5, .bytes = LARGE});
	pthread_barrier_wait(&raw->rank->group->barrier); /* a send has failed */
	memset(raw->out, 'x', LARGE);
	send_raw(raw, LARGE);
}

static void last_data_endpoint(struct endpoint *self, int rc)
{
	const uint64_t data = post_recv(self, LARGE, 9);
	const uint64_t eager = post_recv(self, 0, 4);
	bnet_tagged_done_t done;

	check_int(bnet_tagged_progress(self->tagged, &done, 1), 1);
	check_int(done.id, eager);
	self->over++;
	while (done.rc == 0) {
		check_int(bnet_tagged_send(self->tagged, NULL, 0, 1, 3, MANY), 0);
		check_int(bnet_tagged_progress(self->tagged, &done, 1), 1);
		check_int(done.id, MANY);
	}
	pthread_barrier_wait(&self->rank->group->barrier);
	finish(self);
	check_int(self->rc[data], rc);
	check(self->buf[0] == 'x' && self->buf[LARGE - 1] == 'x');
}

/* ---- a large message, sent ---- */

static void requested_raw(struct raw *raw)
{
	accept_raw(raw);
	receive_kind(raw, BNET_TAGGED_RTS);
}

static void granted_raw(struct raw *raw)
{
	struct bnet_tagged_frame rts;

	accept_raw(raw);
	rts = receive_kind(raw, BNET_TAGGED_RTS);
	connect_raw(raw);
	send_frame(raw, (struct bnet_tagged_frame){.kind = BNET_TAGGED_CTS, .key = rts.key, .bytes = rts.bytes});
	receive_kind(raw, BNET_TAGGED_DATA);
}

/* ---- every state ends: with the peer, or when stopped ---- */

static const struct scene {
	void (*raw)(struct raw *raw);
	void (*endpoint)(struct endpoint *self, int rc);
	int rc;
	void (*end)(bnet_tagged_t *tagged); /* NULL, or rank 1 stays in the state that it has reached and calls this */
} scenes[] = {
	{last_data_raw, last_data_endpoint, 0, NULL}, /* first: it counts descriptors */
	{window_raw, window_endpoint, -EMSGSIZE, NULL},
	{credit_raw, credit_endpoint, 0, NULL},
	{flood_raw, receive_large, -EPROTO, NULL},
	{short_raw, receive_large, -EPROTO, NULL},
	{long_raw, receive_large, -EPROTO, NULL},
	{kind_0_raw, receive_large, -EPROTO, NULL},
	{kind_6_raw, receive_large, -EPROTO, NULL},
	{eager_of_another_size_raw, receive_large, -EPROTO, NULL},
	{too_much_credit_raw, receive_large, -EPROTO, NULL},
	{unknown_cts_raw, receive_large, -EPROTO, NULL},
	{unknown_data_raw, receive_large, -EPROTO, NULL},
	{data_of_another_size_raw, receive_large, -EPROTO, NULL},
	{frame_after_data_raw, receive_large, -EPROTO, NULL},
	{short_chunk_raw, receive_large, -EPROTO, NULL},
	{granting_raw, receive_large, -EREMOTEIO, NULL},
	{offering_raw, receive_large, -EREMOTEIO, NULL},
	{granting_raw, receive_large, -ECANCELED, bnet_tagged_stop},
	{begin_data, receive_large, -EREMOTEIO, NULL},
	{begin_data, receive_large, -ECANCELED, bnet_tagged_stop},
	{requested_raw, send_large, -EREMOTEIO, NULL},
	{requested_raw, send_large, -ECANCELED, bnet_tagged_stop},
	{granted_raw, send_large, -ECANCELED, bnet_tagged_stop},
};
static const struct scene *scene;

static void play_endpoint(struct rank *rank)
{
	struct endpoint *self = malloc(sizeof(*self));

	check(self != NULL);
	open_endpoint(self, rank);
	pthread_barrier_wait(&rank->group->barrier);
	scene->endpoint(self, scene->rc);
	close_endpoint(self);
	free(self);
	if (scene->end != NULL)
		pthread_barrier_wait(&rank->group->barrier);
}

static void play(struct rank *rank)
{
	struct raw *raw;

	if (rank->rank == 0) {
		play_endpoint(rank);
		return;
	}
	raw = new_raw(rank);
	pthread_barrier_wait(&rank->group->barrier);
	scene->raw(raw);
	if (scene->end != NULL) {
		scene->end((bnet_tagged_t *)rank->group->shared[0]);
		pthread_barrier_wait(&rank->group->barrier);
	}
	free_raw(raw);
}

int main(void)
{
	setenv("NCCL_SOCKET_IFNAME", "lo", 1);
	alarm(DEADLINE_S);
	for (size_t i = 0; i < sizeof(scenes) / sizeof(scenes[0]); i++) {
		scene = &scenes[i];
		run_group(&(struct group){0}, 12, 2, play);
	}
	return 0;
}
