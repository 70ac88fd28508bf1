/* SPDX-License-Identifier: MIT
 *
 * Tagged messages of a rank whose two peers send whatever they like, over a network in memory. Nobody is answered who
 * has not asked, no more credit is given or used than there is, every operation ends once, and a receive that ends well
 * has what a peer sent with its tag. Rank 1 is of this host, and rank 2 is not.
 *
 * The clock is interposed, and goes on in steps. The input consists of steps: a byte with the step and its peer, and
 * the step's own bytes.
 */
#include "script.h"
#include "tagged_network.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum step {
	STEP_RECV,
	STEP_SEND,
	STEP_FRAME,
	STEP_RAW,
	STEP_DELIVER,
	STEP_CHUNK,
	STEP_LOSE,
	STEP_HOLD,
	STEP_TIME,
	STEP_STOP,
	STEPS,
};

/* ---- what peers say ---- */

static void queue(struct peer *peer, const char *data, size_t size, bool is_packet)
{
	struct message *message = &peer->queue[peer->queued % QUEUE];

	if (peer->queued - peer->taken == QUEUE)
		return;
	*message = (struct message){.data = malloc(size + 1), .size = size, .is_packet = is_packet};
	EXPECT(message->data);
	memcpy(message->data, data, size);
	peer->queued++;
}

static char *content(int64_t tag, uint64_t size)
{
	size_t i = 0;

	while (i + 1 < CLASSES && sizes[i] != size)
		i++;
	return contents[tag][i];
}

static void deliver(struct peer *peer)
{
	if (peer->packed == 0)
		return;
	queue(peer, peer->packet, peer->packed, true);
	peer->packed = 0;
}

static void pack(struct peer *peer, const void *bytes, size_t size)
{
	if (size > sizeof(peer->packet) - peer->packed)
		return;
	memcpy(peer->packet + peer->packed, bytes, size);
	peer->packed += size;
}

/* The token is right, or another message's, which is there now. */
static struct bnet_tagged_offer offer_of(const struct bnet_tagged_frame *frame, bool is_stale)
{
	static uint64_t token = 77;

	return (struct bnet_tagged_offer){
		.process = getpid(),
		.buffer = (uintptr_t)content(is_stale ? (frame->tag + 1) % TAGS : frame->tag, frame->bytes),
		.token_at = (uintptr_t)&token,
		.token = token + is_stale,
	};
}

/* Keys of a peer's own messages tell their tags. */
static void pack_frame(struct script *script, struct peer *peer)
{
	const uint8_t what = take(script), which = take(script), credit = take(script);
	const bool answers = what % 8 == BNET_TAGGED_CTS || what % 8 == BNET_TAGGED_READ;
	struct bnet_tagged_frame frame = {
		.kind = what % 8,
		.key = answers ? peer->keys[which % KEYS] : which % KEYS,
		.tag = which % TAGS,
		.bytes = sizes[which / KEYS % CLASSES],
		.credit = (credit & 0x80 ? peer->charged * (credit & 0x7f) / 0x7f : 0) + (credit & 1) * TOO_MUCH,
	};
	struct bnet_tagged_offer offer;

	if (frame.kind == BNET_TAGGED_EAGER && frame.bytes > BNET_TAGGED_EAGER_MAX)
		frame.bytes = which / KEYS;
	happens(32 + 16 * (unsigned)frame.kind + which / KEYS % 8 + 8 * (what >> 7));
	offer = offer_of(&frame, what & 0x80);
	if (sizeof(frame) + bnet_tagged_frame_payload(&frame) > sizeof(peer->packet) - peer->packed)
		deliver(peer);
	pack(peer, &frame, sizeof(frame));
	if (frame.kind == BNET_TAGGED_EAGER)
		pack(peer, content(frame.tag, frame.bytes), frame.bytes);
	if (frame.kind == BNET_TAGGED_OFFER)
		pack(peer, &offer, sizeof(offer));
	if (frame.kind == BNET_TAGGED_DATA)
		peer->data = frame;
	if (frame.kind == BNET_TAGGED_DATA || what & 0x40)
		deliver(peer);
}

static void pack_raw(struct script *script, struct peer *peer)
{
	const uint8_t *bytes;
	const size_t size = take_bytes(script, &bytes, 1 + take(script) % 80);

	if (size)
		pack(peer, bytes, size);
	run.forged = true;
}

/* What its last DATA has announced, or not quite so much. */
static void send_chunks(struct script *script, struct peer *peer)
{
	const uint8_t less = take(script);
	size_t left = peer->data.bytes < LARGEST ? peer->data.bytes : LARGEST;

	deliver(peer);
	left -= less % 4 == 3 && less / 4 < left ? less / 4 : 0;
	while (left) {
		const size_t size = left < BNET_COLL_CHUNK ? left : BNET_COLL_CHUNK;

		queue(peer, content((int64_t)(peer->data.key % TAGS), peer->data.bytes), size, false);
		left -= size;
	}
}

/* ---- operations ---- */

static void post_op(struct script *script, bool sends, int rank)
{
	const uint8_t what = take(script), more = take(script);
	struct op *op = &run.ops[run.nops];

	if (run.nops == OPS)
		return;
	*op = (struct op){
		.row = what / TAGS % CLASSES,
		.tag = what % TAGS,
		.sends = sends,
	};
	op->size = sizes[op->row];
	op->buffer = malloc(op->size + 1); /* a byte more: some sizes are none */
	EXPECT(op->buffer);
	memset(op->buffer, sends ? (int)op->tag + 1 : 0, op->size + 1);
	if (sends ? bnet_tagged_send(run.tagged, op->buffer, op->size, rank, op->tag, run.nops)
		  : bnet_tagged_recv(run.tagged, op->buffer, op->size, more & 1 ? -1 : rank, op->tag, run.nops))
		free(op->buffer); /* it has been stopped */
	else
		run.nops++;
}

static void end_op(const bnet_tagged_done_t *done)
{
	struct op *op;

	EXPECT(done->id < run.nops && (done->rc == 0) == (done->error == NULL));
	op = &run.ops[done->id];
	EXPECT(!op->over);
	happens((unsigned)(2 * op->sends + (done->rc == 0)) * 8 + op->row);
	op->over = true;
	run.nover++;
	EXPECT(op->buffer[op->size] == (op->sends ? op->tag + 1 : 0));
	if (done->rc == 0 && !op->sends && !run.forged)
		EXPECT(memcmp(op->buffer, contents[op->tag][op->row], op->size) == 0);
	free(op->buffer); /* nothing may touch it any more */
	op->buffer = NULL;
}

/* Until nothing moves: false once it has been stopped. */
static bool pass(void)
{
	bnet_tagged_done_t done[4];
	bool moved = true;
	int count = 0;

	for (int passes = 0; moved || count > 0; passes++) {
		EXPECT(passes < PASSES);
		count = bnet_tagged_pass(run.tagged, done, 4, &moved);
		for (int i = 0; i < count; i++)
			end_op(&done[i]);
		if (count == -ESHUTDOWN)
			return false;
		EXPECT(count >= 0);
	}
	return true;
}

/* ---- a run ---- */

static void step(struct script *script)
{
	const uint8_t byte = take(script);
	struct peer *peer = &run.peers[1 + byte / STEPS % (RANKS - 1)];

	switch ((enum step)(byte % STEPS)) {
	case STEP_RECV:
	case STEP_SEND:
		post_op(script, byte % STEPS == STEP_SEND, peer->rank);
		break;
	case STEP_FRAME:
		pack_frame(script, peer);
		break;
	case STEP_RAW:
		pack_raw(script, peer);
		break;
	case STEP_DELIVER:
		deliver(peer);
		break;
	case STEP_CHUNK:
		send_chunks(script, peer);
		break;
	case STEP_LOSE:
		peer->lost = true;
		break;
	case STEP_HOLD:
		peer->holds = !peer->holds;
		break;
	case STEP_TIME:
		peer->absent = false;
		run.now_ns += (uint64_t)take(script) * 100000000;
		break;
	case STEP_STOP:
		bnet_tagged_stop(run.tagged);
		break;
	case STEPS:
		break;
	}
}

static void begin(uint8_t set)
{
	char rows[RANKS * RANKS * NCCL_NET_HANDLE_MAXSIZE] = {0};
	bnet_coll_t *coll;

	memset(&run, 0, sizeof(run));
	for (size_t i = 0; i < TAGS * CLASSES && contents[i / CLASSES][i % CLASSES][0] == 0; i++)
		memset(contents[i / CLASSES][i % CLASSES], (int)i + 1, LARGEST);
	run.now_ns = 1000000000;
	for (int rank = 1; rank < RANKS; rank++) {
		run.peers[rank].rank = rank;
		run.peers[rank].absent = set >> rank & 1;
	}
	EXPECT(bnet_coll_create(&coll, &network, 8, 0, 0, RANKS) == 0);
	EXPECT(bnet_coll_listen(coll, rows) == 0);
	for (int rank = 1; rank < RANKS; rank++)
		rows[rank * RANKS * NCCL_NET_HANDLE_MAXSIZE] = (char)rank;
	EXPECT(bnet_tagged_create(&run.tagged, coll, rows) == 0);
	run.tagged->peers[1].local = true;
}

static void end(void)
{
	for (int rank = 1; rank < RANKS; rank++)
		run.peers[rank].holds = false;
	bnet_tagged_stop(run.tagged);
	while (pass())
		;
	EXPECT(run.nover == run.nops);
	bnet_tagged_destroy(run.tagged);
	for (int rank = 1; rank < RANKS; rank++)
		for (struct peer *peer = &run.peers[rank]; peer->taken < peer->queued; peer->taken++)
			free(peer->queue[peer->taken % QUEUE].data);
	run.now_ns = 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct script script = {data, size};

	begin(take(&script));
	while (script.left) {
		step(&script);
		if (!pass())
			break;
	}
	end();
	return 0;
}
