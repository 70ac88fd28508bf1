/* SPDX-License-Identifier: MIT
 *
 * The frames of the tagged messages, as a peer sees them: rank 0 has messages, rank 1 sends and receives frames by
 * hand, which may be wrong, late or the last ones.
 */
#include <errno.h>
#include <sched.h>
#include <unistd.h>

#include "bagua_net.h"
#include "check.h"
#include "tagged/tagged.h"
#include "ranks.h"

#define DEADLINE_S 250 /* of the whole program */
#define TIMEOUT_S 100  /* of an operation: a hang would end here */
#define LETTER ((size_t)4096)
#define PLACE (LETTER + sizeof(struct bnet_tagged_frame))
#define LARGE ((size_t)20000)
#define MANY 100 /* letters: more than the window has room for */

/* ---- rank 0 ---- */

struct box {
	struct rank *rank;
	bnet_tagged_t *mail;
	size_t posted, over;
	int rc[MANY + 10]; /* by id */
	char said[MANY + 10][256];
	char *buf;
};

static void open_box(struct box *box, struct rank *rank)
{
	memset(box, 0, sizeof(*box));
	box->rank = rank;
	check_int(bnet_tagged_create(&box->mail, rank->coll, rank->group->rows), 0);
	rank->coll = NULL; /* the messages' from now on */
	rank->group->shared[0] = (char *)box->mail;
	box->buf = calloc(1, 64 * BNET_COLL_CHUNK);
	check(box->buf != NULL);
}

static void close_box(struct box *box)
{
	bnet_tagged_destroy(box->mail);
	free(box->buf);
}

static uint64_t post_send(struct box *box, size_t bytes, int64_t tag)
{
	check_int(bnet_tagged_send(box->mail, box->buf, bytes, 1, tag, TIMEOUT_S, box->posted), 0);
	return box->posted++;
}

static uint64_t post_recv(struct box *box, size_t bytes, int64_t tag)
{
	check_int(bnet_tagged_recv(box->mail, box->buf, bytes, 1, tag, TIMEOUT_S, box->posted), 0);
	return box->posted++;
}

/* Until all that was posted is over. */
static void finish(struct box *box)
{
	bnet_tagged_done_t done[7];

	while (box->over < box->posted) {
		int count = bnet_tagged_progress(box->mail, done, 7);

		check(count > 0);
		for (int i = 0; i < count; i++, box->over++) {
			box->rc[done[i].id] = done[i].rc;
			snprintf(box->said[done[i].id], sizeof(box->said[0]), "%s", done[i].error != NULL ? done[i].error : "");
		}
	}
}

/* Networks do not agree on what it is that a peer is gone. */
static void check_ended(const struct box *box, uint64_t id, int rc)
{
	const char *word = rc == -EREMOTEIO ? "lost rank 1" : rc == -EPROTO ? "rank 1" : "";

	if (rc != -EREMOTEIO || box->rc[id] != -EIO)
		check_int(box->rc[id], rc);
	check(strstr(box->said[id], word) != NULL);
}

static void receive_large(struct box *box, int rc)
{
	const uint64_t id = post_recv(box, LARGE, 9);

	finish(box);
	check_ended(box, id, rc);
}

static void send_large(struct box *box, int rc)
{
	const uint64_t id = post_send(box, 64 * BNET_COLL_CHUNK, 9);

	finish(box);
	check_ended(box, id, rc);
}

/* ---- rank 1 ---- */

struct raw {
	struct rank *rank;
	struct bnet_coll *coll;
	void *out_mhandle, *in_mhandle;
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
				 &raw->out_mhandle), ncclSuccess);
}

static void accept_raw(struct raw *raw)
{
	bool progress = false;

	for (; rank_0(raw)->recv.comm == NULL; sched_yield())
		check_int(bnet_coll_try_accept(raw->coll, 0, &progress), 0);
	check_int(bnet_client_reg(&raw->coll->client, rank_0(raw)->recv.comm, raw->in, sizeof(raw->in), NCCL_PTR_HOST,
				 &raw->in_mhandle), ncclSuccess);
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

/* Both connections end, as those of a process that dies. */
static void free_raw(struct raw *raw)
{
	stop_receiving(raw);
	if (raw->out_mhandle != NULL)
		bnet_client_dereg(&raw->coll->client, rank_0(raw)->send.comm, raw->out_mhandle);
	bnet_coll_destroy(raw->coll);
	raw->rank->coll = NULL;
	free(raw);
}

/* 0 … bytes-1 of out. */
static void send_raw(struct raw *raw, size_t bytes)
{
	const struct bnet_client *client = &raw->coll->client;
	void *request = NULL;
	int done = 0;

	for (; request == NULL; sched_yield())
		check_int(bnet_client_isend(client, rank_0(raw)->send.comm, raw->out, bytes, 0, raw->out_mhandle, &request),
			  ncclSuccess);
	for (; !done; sched_yield())
		check_int(bnet_client_test(client, request, &done, NULL), ncclSuccess);
}

static void send_frame(struct raw *raw, struct bnet_tagged_frame frame)
{
	memcpy(raw->out, &frame, sizeof(frame));
	send_raw(raw, sizeof(frame) + (frame.kind == FRAME_LETTER ? frame.bytes : 0));
}

static struct bnet_tagged_frame receive_frame(struct raw *raw)
{
	const struct bnet_client *client = &raw->coll->client;
	struct bnet_tagged_frame frame;
	void *request = NULL;
	int done = 0, bytes = 0;

	for (; request == NULL; sched_yield())
		check_int(bnet_client_irecv(client, rank_0(raw)->recv.comm, raw->in, sizeof(raw->in), 0, raw->in_mhandle,
					   &request), ncclSuccess);
	for (; !done; sched_yield())
		check_int(bnet_client_test(client, request, &done, &bytes), ncclSuccess);
	memcpy(&frame, raw->in, sizeof(frame));
	check_int(bytes, sizeof(frame) + (frame.kind == FRAME_LETTER ? frame.bytes : 0));
	return frame;
}

static struct bnet_tagged_frame receive_kind(struct raw *raw, uint64_t kind)
{
	struct bnet_tagged_frame frame = receive_frame(raw);

	while (frame.kind == FRAME_TAKEN && frame.taken == 0) /* whether this is still here */
		frame = receive_frame(raw);
	check_int(frame.kind, kind);
	return frame;
}

/* ---- the window ---- */

/* As many letters as it has room for, then announcements; what is handed on makes room again. */
static void window_raw(struct raw *raw)
{
	const size_t letters = BNET_LETTER_WINDOW / PLACE;

	accept_raw(raw);
	connect_raw(raw);
	for (size_t i = 0; i < letters; i++)
		receive_kind(raw, FRAME_LETTER);
	for (size_t i = letters; i < MANY; i++) {
		const struct bnet_tagged_frame asked = receive_kind(raw, FRAME_ANNOUNCE);

		send_frame(raw, (struct bnet_tagged_frame){.kind = FRAME_GO, .key = asked.key, .bytes = LETTER + 1,
						    .taken = i == letters ? letters * PLACE : 0});
	}
	receive_kind(raw, FRAME_LETTER);
}

static void window_box(struct box *box, int rc)
{
	for (size_t i = 0; i < MANY; i++)
		post_send(box, LETTER, 0);
	finish(box);
	for (size_t i = 0; i < MANY; i++)
		check_int(box->rc[i], i < BNET_LETTER_WINDOW / PLACE ? 0 : rc);
	post_send(box, LETTER, 0);
	finish(box);
	check_int(box->rc[MANY], 0);
}

/* Who only receives says so, too, once it has a connection. */
static void taken_raw(struct raw *raw)
{
	const size_t letters = BNET_LETTER_WINDOW / 2 / PLACE + 1;

	connect_raw(raw);
	send_frame(raw, (struct bnet_tagged_frame){.kind = FRAME_ANNOUNCE, .key = 1, .tag = 1});
	accept_raw(raw);
	receive_kind(raw, FRAME_GO);
	for (size_t i = 0; i < letters; i++)
		send_frame(raw, (struct bnet_tagged_frame){.kind = FRAME_LETTER, .bytes = LETTER});
	check_int(receive_kind(raw, FRAME_TAKEN).taken, letters * PLACE);
	bnet_tagged_stop((bnet_tagged_t *)raw->rank->group->shared[0]);
}

static void taken_box(struct box *box, int rc)
{
	bnet_tagged_done_t done;

	post_recv(box, 0, 1);
	for (size_t i = 0; i < BNET_LETTER_WINDOW / 2 / PLACE + 1; i++)
		post_recv(box, LETTER, 0);
	finish(box);
	check_int(bnet_tagged_progress(box->mail, &done, 1), rc); /* as long as it lives */
}

/* Who does not keep to the window is lost. */
static void flood_raw(struct raw *raw)
{
	connect_raw(raw);
	for (size_t i = 0; i <= BNET_LETTER_WINDOW / PLACE; i++)
		send_frame(raw, (struct bnet_tagged_frame){.kind = FRAME_LETTER, .bytes = LETTER});
}

/* ---- frames that are none ---- */

static void short_raw(struct raw *raw)
{
	connect_raw(raw);
	raw->out[0] = FRAME_TAKEN;
	send_raw(raw, sizeof(struct bnet_tagged_frame) - 1);
}

static void long_raw(struct raw *raw)
{
	connect_raw(raw);
	raw->out[0] = FRAME_TAKEN;
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
	send_frame(raw, (struct bnet_tagged_frame){.kind = FRAME_TAKEN + 1});
}

static void letter_of_another_size_raw(struct raw *raw)
{
	const struct bnet_tagged_frame frame = {.kind = FRAME_LETTER, .bytes = UINT64_MAX};

	connect_raw(raw);
	memcpy(raw->out, &frame, sizeof(frame));
	send_raw(raw, sizeof(frame) + 5);
}

static void taken_too_much_raw(struct raw *raw)
{
	connect_raw(raw);
	send_frame(raw, (struct bnet_tagged_frame){.kind = FRAME_TAKEN, .taken = 1});
}

static void unknown_go_raw(struct raw *raw)
{
	connect_raw(raw);
	send_frame(raw, (struct bnet_tagged_frame){.kind = FRAME_GO, .key = 5, .bytes = 1});
}

static void unknown_parcel_raw(struct raw *raw)
{
	connect_raw(raw);
	send_frame(raw, (struct bnet_tagged_frame){.kind = FRAME_PARCEL, .key = 5, .bytes = LARGE});
}

/* ---- a large message, received ---- */

static void promise(struct raw *raw)
{
	connect_raw(raw);
	send_frame(raw, (struct bnet_tagged_frame){.kind = FRAME_ANNOUNCE, .key = 5, .tag = 9, .bytes = LARGE});
	accept_raw(raw);
	check_int(receive_kind(raw, FRAME_GO).key, 5);
}

static void begin_parcel(struct raw *raw)
{
	promise(raw);
	send_frame(raw, (struct bnet_tagged_frame){.kind = FRAME_PARCEL, .key = 5, .bytes = LARGE});
}

static void parcel_of_another_size_raw(struct raw *raw)
{
	promise(raw);
	send_frame(raw, (struct bnet_tagged_frame){.kind = FRAME_PARCEL, .key = 5, .bytes = LARGE - 1});
}

static void short_chunk_raw(struct raw *raw)
{
	begin_parcel(raw);
	send_raw(raw, LARGE - 1);
}

/* What is closed goes on to take what comes, and discards it, for a moment. */
static void stop_receiving_for_good(struct raw *raw)
{
	bnet_counters_t before, now;

	bnet_counters(&before);
	stop_receiving(raw);
	for (now = before; now.descriptors >= before.descriptors; sched_yield())
		bnet_counters(&now);
}

/* It takes nothing more, and ends what it has begun: its connections have no order among them. */
static void last_parcel_raw(struct raw *raw)
{
	promise(raw);
	stop_receiving_for_good(raw);
	send_frame(raw, (struct bnet_tagged_frame){.kind = FRAME_LETTER, .tag = 4});
	send_frame(raw, (struct bnet_tagged_frame){.kind = FRAME_PARCEL, .key = 5, .bytes = LARGE});
	pthread_barrier_wait(&raw->rank->group->barrier); /* a send has failed */
	memset(raw->out, 'x', LARGE);
	send_raw(raw, LARGE);
}

static void last_parcel_box(struct box *box, int rc)
{
	const uint64_t parcel = post_recv(box, LARGE, 9);
	const uint64_t letter = post_recv(box, 0, 4);
	bnet_tagged_done_t done;

	check_int(bnet_tagged_progress(box->mail, &done, 1), 1);
	check_int(done.id, letter);
	box->over++;
	while (done.rc == 0) {
		check_int(bnet_tagged_send(box->mail, NULL, 0, 1, 3, TIMEOUT_S, MANY), 0);
		check_int(bnet_tagged_progress(box->mail, &done, 1), 1);
		check_int(done.id, MANY);
	}
	pthread_barrier_wait(&box->rank->group->barrier);
	finish(box);
	check_int(box->rc[parcel], rc);
	check(box->buf[0] == 'x' && box->buf[LARGE - 1] == 'x');
}

/* ---- a large message, sent ---- */

static void announced_raw(struct raw *raw)
{
	accept_raw(raw);
	receive_kind(raw, FRAME_ANNOUNCE);
}

static void go_raw(struct raw *raw)
{
	struct bnet_tagged_frame asked;

	accept_raw(raw);
	asked = receive_kind(raw, FRAME_ANNOUNCE);
	connect_raw(raw);
	send_frame(raw, (struct bnet_tagged_frame){.kind = FRAME_GO, .key = asked.key, .bytes = asked.bytes});
	receive_kind(raw, FRAME_PARCEL);
}

/* ---- every state ends: by the peer, by another message's deadline, or stopped ---- */

static void overrun(bnet_tagged_t *mail)
{
	check_int(bnet_tagged_recv(mail, NULL, 0, 1, 3, 1e-9, 1), 0);
}

static const struct scene {
	void (*raw)(struct raw *raw);
	void (*box)(struct box *box, int rc);
	int rc;
	void (*end)(bnet_tagged_t *mail); /* NULL, or what rank 1 does where it has come to, and stays there */
} scenes[] = {
	{last_parcel_raw, last_parcel_box, 0, NULL}, /* the first one: it watches descriptors */
	{window_raw, window_box, -EMSGSIZE, NULL},
	{taken_raw, taken_box, 0, NULL},
	{flood_raw, receive_large, -EPROTO, NULL},
	{short_raw, receive_large, -EPROTO, NULL},
	{long_raw, receive_large, -EPROTO, NULL},
	{kind_0_raw, receive_large, -EPROTO, NULL},
	{kind_6_raw, receive_large, -EPROTO, NULL},
	{letter_of_another_size_raw, receive_large, -EPROTO, NULL},
	{taken_too_much_raw, receive_large, -EPROTO, NULL},
	{unknown_go_raw, receive_large, -EPROTO, NULL},
	{unknown_parcel_raw, receive_large, -EPROTO, NULL},
	{parcel_of_another_size_raw, receive_large, -EPROTO, NULL},
	{short_chunk_raw, receive_large, -EPROTO, NULL},
	{promise, receive_large, -EREMOTEIO, NULL},
	{promise, receive_large, -ETIMEDOUT, overrun},
	{promise, receive_large, -ECANCELED, bnet_tagged_stop},
	{begin_parcel, receive_large, -EREMOTEIO, NULL},
	{begin_parcel, receive_large, -ETIMEDOUT, overrun},
	{begin_parcel, receive_large, -ECANCELED, bnet_tagged_stop},
	{announced_raw, send_large, -EREMOTEIO, NULL},
	{announced_raw, send_large, -ETIMEDOUT, overrun},
	{announced_raw, send_large, -ECANCELED, bnet_tagged_stop},
	{go_raw, send_large, -ETIMEDOUT, overrun},
	{go_raw, send_large, -ECANCELED, bnet_tagged_stop},
};
static const struct scene *scene;

static void play_box(struct rank *rank)
{
	struct box *box = malloc(sizeof(*box));

	check(box != NULL);
	open_box(box, rank);
	pthread_barrier_wait(&rank->group->barrier);
	scene->box(box, scene->rc);
	close_box(box);
	free(box);
	if (scene->end != NULL)
		pthread_barrier_wait(&rank->group->barrier);
}

static void play(struct rank *rank)
{
	struct raw *raw;

	if (rank->rank == 0) {
		play_box(rank);
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
