/* SPDX-License-Identifier: MIT
 *
 * A receiver whose streams are sealed, or plain, are reset or end, and take each other's place. Its buffers may have
 * nothing but what was sealed for them. From senders that keep to the protocol all of that arrives, and the connection
 * lives. Every request ends once the streams do, unless a stream waits: for a receive that is never posted, or for the
 * one that is to take its place.
 *
 * The first byte is the kind of the seals. Then come steps: a byte with the step and its stream, and the step's own
 * bytes.
 */
#include <errno.h>
#include <stdbool.h>
#include <sys/socket.h>

#include "script.h"
#include "transport/conn.h"
#include "transport/progress.h"
#include "transport/request.h"
#include "transport/seal.h"
#include "transport/source.h"

#define MESSAGES 4
#define UNITS 6
#define CAPACITY 20000
#define STREAMS 10
#define FRAMES 32
#define FRAME_MAX (BNET_WIRE_DATA_HEADER + 3 * BNET_UNIT + BNET_SEAL_TAG)
/* Every stream is asked in so many passes. */
#define QUIET_PASSES 32
#define MOST_PASSES 1000 /* it hangs */

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum step {
	STEP_SEND,
	STEP_SEAL, /* a frame that is written later, or never */
	STEP_WRITE,
	STEP_RAW,
	STEP_SAY,
	STEP_POST,
	STEP_END,
	STEP_RESET,
	STEP_REPLACE,
	STEP_REAP,
	STEPS,
};

enum kind {
	KIND_PLAIN = BNET_SEAL_CHECKSUM + 1,
	KINDS,
};

/* The other end of a stream. */
struct sender {
	int fd; /* -1: it has ended */
	uint32_t serial, repairs;
	struct bnet_seal *seal;
	uint64_t sealed, written; /* frames, in order */
	bool intact;              /* it has carried nothing else, and no other stream has its place */
	bool inside;              /* its last frame is not whole */
};

struct frame {
	int stream;
	uint64_t number;
	bool has_slice; /* one that can be */
	struct bnet_wire_data slice;
	size_t size;
	uint8_t bytes[FRAME_MAX];
};

static struct {
	enum kind kind;
	struct bnet_conn *conn;
	int nsenders, nframes, nrequests;
	struct sender senders[STREAMS];
	struct frame frames[FRAMES];
	struct bnet_request *requests[MESSAGES]; /* NULL: it is over */
	char *buffers[MESSAGES];
	struct message {
		bool told; /* a slice has told its size */
		uint64_t size;
		/* The slice that a unit is of, whether it may be in the buffer, and whether all of it was written. */
		struct place {
			uint64_t offset, length;
			bool sealed, whole;
		} places[UNITS];
	} messages[MESSAGES];
	bool lied; /* a sender has done what none does: what it has sent need not arrive, and the connection may fail */
	bool forged; /* … and without a key, so that anything may arrive */
} run;

static struct bnet_config config = {.min_chunksize = 4096, .max_chunksize = 8192, .repair = 1};
static struct bnet_device device = {.name = "fuzz", .address = ""};

/* ---- streams ---- */

static bool is_encrypted(void)
{
	return run.kind < (enum kind)BNET_SEAL_CHECKSUM;
}

static struct bnet_seal *new_seal(uint32_t serial, bool sends)
{
	const struct bnet_seal_origin origin = {.kind = (enum bnet_seal_kind)run.kind, .serial = serial};
	struct bnet_seal *seal = run.kind == KIND_PLAIN ? NULL : bnet_seal_new(&origin, sends);

	EXPECT(seal || run.kind == KIND_PLAIN);
	return seal;
}

/* As handshake/welcome.c does. */
static void add_stream(struct bnet_stream_start start)
{
	const int room = 1 << 20;
	struct sender *sender = &run.senders[run.nsenders];
	int pair[2], rc = 0;

	if (run.nsenders == STREAMS)
		return;
	EXPECT(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair) == 0);
	setsockopt(pair[1], SOL_SOCKET, SO_SNDBUF, &room, sizeof(room));
	EXPECT(send(pair[0], "x", 1, 0) == 1);
	start.seal = new_seal(start.serial, false);
	if (start.repairs)
		rc = bnet_source_replace(run.conn, &start);
	if (rc == 0)
		rc = bnet_conn_add_stream(run.conn, pair[0], &start);
	if (rc < 0) {
		EXPECT(rc == -ESTALE);
		bnet_seal_free(start.seal);
		close(pair[0]);
		close(pair[1]);
		return;
	}
	*sender = (struct sender){
		.fd = pair[1],
		.serial = start.serial,
		.repairs = start.repairs,
		.seal = new_seal(start.serial, true),
		.intact = true,
	};
	run.nsenders++;
}

/* With unread bytes in its socket it resets. */
static void end_stream(struct sender *sender, bool resets)
{
	char byte;

	if (sender->fd < 0)
		return;
	if (!resets)
		EXPECT(recv(sender->fd, &byte, 1, MSG_DONTWAIT) == 1);
	close(sender->fd);
	sender->fd = -1;
	run.lied |= !resets;
}

/* A sender repeats a try whose answer it has not had, on which it has sent nothing. */
static bool is_honest(uint32_t repairs)
{
	for (int i = 0; i < run.nsenders; i++)
		if (run.senders[i].repairs == repairs && (run.senders[i].written || !run.senders[i].intact))
			return false;
	return true;
}

/* Another stream takes this one's place, or, by a sender that lies, that of any serial, with any serial of its own. */
static void replace(struct script *script, const struct sender *sender)
{
	const uint8_t lie = take(script);
	struct bnet_stream_start start = {.serial = (uint32_t)run.nsenders + 1, .repairs = sender->serial};

	if (lie & 1) {
		start.repairs = lie / 2 % 16;
		start.serial = lie / 32;
	}
	if ((lie & 1) || !is_honest(start.repairs))
		run.lied = run.forged = true;
	for (int i = 0; i < run.nsenders && run.nsenders < STREAMS; i++)
		if (run.senders[i].serial == start.repairs || run.senders[i].repairs == start.repairs)
			run.senders[i].intact = run.senders[i].inside = false;
	for (int i = 0; i < run.conn->nstreams && !run.lied; i++)
		if (run.conn->streams[i]->serial == start.repairs)
			happens(208 + (unsigned)run.kind * 4 + run.conn->streams[i]->in.state);
	add_stream(start);
}

/* As control/active.c does. */
static void reap(void)
{
	for (int i = run.conn->nstreams - 1; i >= 0 && run.conn->nstreams > 1; i--)
		if (run.conn->streams[i]->in.state == BNET_INCOMING_ENDED && !run.conn->streams[i]->in.awaits)
			close(bnet_conn_drop_stream(run.conn, i));
}

/* ---- frames ---- */

static char content(uint64_t message, uint64_t unit)
{
	return (char)(1 + message * UNITS + unit);
}

static size_t payload_of(const struct bnet_wire_data *slice, char payload[3 * BNET_UNIT])
{
	for (uint32_t at = 0; at < slice->length; at += BNET_UNIT)
		memset(payload + at, content(slice->message, (slice->offset + at) / BNET_UNIT),
		       slice->length - at < BNET_UNIT ? slice->length - at : BNET_UNIT);
	return slice->length;
}

static void seal(struct frame *frame, int stream, const uint8_t *head, size_t head_size, const char *payload,
		 size_t size)
{
	struct sender *sender = &run.senders[stream];
	const uint8_t *bytes;

	frame->stream = stream;
	frame->number = sender->sealed++;
	if (!sender->seal) {
		memcpy(frame->bytes, head, head_size);
		memcpy(frame->bytes + head_size, payload, size);
		frame->size = head_size + size;
		return;
	}
	EXPECT(bnet_seal_frame(sender->seal, head, head_size, payload, size) == 0);
	bytes = bnet_seal_left(sender->seal, &frame->size);
	memcpy(frame->bytes, bytes, frame->size);
	bnet_seal_written(sender->seal, frame->size);
}

/* Message, offset in units, length in units or a few bytes more, size: not always a slice that can be. */
static struct frame *seal_slice(struct script *script, int stream)
{
	const uint8_t message = take(script), place = take(script), end = take(script);
	struct frame *frame = &run.frames[run.nframes % FRAMES];
	uint8_t head[BNET_WIRE_DATA_HEADER];
	char payload[3 * BNET_UNIT];

	*frame = (struct frame){
		.slice = {.message = message % MESSAGES,
			  .offset = (uint64_t)(place % 4) * BNET_UNIT,
			  .length = (uint32_t)(place / 4 % 3) * BNET_UNIT + (place & 0x80 ? end : 0),
			  .size = (uint64_t)end * 80},
	};
	run.nframes++;
	bnet_wire_data_encode(head, &frame->slice);
	frame->has_slice = bnet_wire_data_decode(head, &frame->slice) == 0;
	run.lied |= !frame->has_slice;
	seal(frame, stream, head, sizeof(head), payload, payload_of(&frame->slice, payload));
	return frame;
}

/* One without a slice, which has a body or none. */
static struct frame *seal_word(struct script *script, int stream)
{
	const uint8_t type = take(script);
	const struct bnet_wire_frame word = {.type = type & 0x80 ? BNET_WIRE_FRAME_CLOSE : type,
					     .length = type / 16 % 8};
	struct frame *frame = &run.frames[run.nframes++ % FRAMES];
	uint8_t head[BNET_WIRE_FRAME_HEADER];

	*frame = (struct frame){0};
	run.lied |= word.type == BNET_WIRE_FRAME_DATA || word.type == BNET_WIRE_FRAME_CLOSE ||
		    word.type == BNET_WIRE_FRAME_FAILED;
	bnet_wire_frame_encode(head, &word);
	seal(frame, stream, head, sizeof(head), "a word", word.length);
	return frame;
}

static bool put(const struct sender *sender, const uint8_t *bytes, size_t size)
{
	return sender->fd >= 0 && send(sender->fd, bytes, size, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)size;
}

/* A slice may wait behind one of another stream that is cut off and never becomes whole. */
static bool any_is_inside(void)
{
	for (int i = 0; i < run.nsenders; i++)
		if (run.senders[i].inside)
			return true;
	return false;
}

static bool is_other(const struct place *place, const struct bnet_wire_data *slice)
{
	return place->sealed && (place->offset != slice->offset || place->length != slice->length);
}

/* A slice is cut once, and comes again only on the stream that takes the place of the one that broke in it. */
static void note(const struct bnet_wire_data *slice, bool is_whole)
{
	struct message *message = &run.messages[slice->message];

	run.lied |= slice->size > CAPACITY || (message->told && message->size != slice->size);
	message->told = true;
	message->size = slice->size;
	for (uint64_t at = 0; at < slice->length; at += BNET_UNIT) {
		struct place *place = &message->places[(slice->offset + at) / BNET_UNIT];

		run.lied |= is_other(place, slice) || (place->sealed && !place->whole && any_is_inside());
		if (place->sealed && !place->whole && is_whole)
			happens(200 + run.kind);
		*place = (struct place){slice->offset, slice->length, true, place->whole || is_whole};
	}
}

enum how {
	HOW_WHOLE,
	HOW_CUT,
	HOW_ALTERED,
	HOWS,
};

/* Where in a frame: its header, the slice's, the payload, its last bytes. */
static unsigned region_of(const struct frame *frame, size_t at)
{
	return at + BNET_SEAL_TAG >= frame->size ? 3 : at >= BNET_WIRE_DATA_HEADER ? 2 : at >= BNET_WIRE_FRAME_HEADER;
}

static void write_frame(int stream, const struct frame *frame, enum how how, size_t where)
{
	struct sender *sender = &run.senders[stream];
	const bool is_next = !is_encrypted() || (frame->stream == stream && frame->number == sender->written);
	const size_t size = how == HOW_CUT ? where : frame->size;
	uint8_t bytes[FRAME_MAX];

	if (size == 0)
		return; /* cut before its first byte: it may still come */
	memcpy(bytes, frame->bytes, frame->size);
	if (how == HOW_ALTERED)
		bytes[where] ^= 0x10;
	if (!put(sender, bytes, size)) {
		run.lied = run.forged = true; /* it has ended, or is full and has some of it */
		return;
	}
	happens((((unsigned)run.kind * HOWS + how) * 4 + region_of(frame, where)) * 4 +
		2 * (sender->intact && is_next) + (run.nrequests > (int)frame->slice.message));
	sender->written++;
	if (!sender->intact || !is_next || how == HOW_ALTERED) {
		run.lied = true;
		run.forged |= !is_encrypted();
	} else if (frame->has_slice && (how == HOW_WHOLE || run.kind == KIND_PLAIN)) {
		note(&frame->slice, how == HOW_WHOLE);
	}
	sender->intact &= how == HOW_WHOLE && is_next;
	sender->inside |= how == HOW_CUT;
}

/* A frame that was sealed before, whether or not it was written, to any stream. */
static void write_again(struct script *script, int stream)
{
	const uint8_t which = take(script), how = take(script), where = take(script);
	const int kept = run.nframes < FRAMES ? run.nframes : FRAMES;
	const struct frame *frame = &run.frames[kept ? which % kept : 0];

	if (kept)
		write_frame(stream, frame, (enum how)(how % HOWS),
			    how & 0x80 ? frame->size - 1 - where % frame->size : where % frame->size);
}

static void write_raw(struct script *script, int stream)
{
	const uint8_t *bytes;
	const size_t size = take_bytes(script, &bytes, 1 + take(script) % 64);

	if (size == 0)
		return;
	put(&run.senders[stream], bytes, size);
	run.senders[stream].intact = false;
	run.lied = true;
	run.forged |= !is_encrypted();
}

/* ---- requests ---- */

static void post(void)
{
	const int i = run.nrequests;

	if (i == MESSAGES)
		return;
	run.buffers[i] = calloc(1, CAPACITY); /* exact, so that an overflow is detected */
	run.requests[i] = bnet_request_post(run.conn, run.buffers[i], CAPACITY);
	EXPECT(run.buffers[i] && run.requests[i]);
	run.nrequests++;
}

static void pass(void)
{
	for (int i = 0; i < run.nrequests; i++) {
		uint64_t got = 0;
		int rc = run.requests[i] ? bnet_progress_test(run.requests[i], &got) : 0;

		EXPECT(got <= CAPACITY);
		if (rc)
			run.requests[i] = NULL;
	}
}

static bool any_is_outstanding(void)
{
	for (int i = 0; i < run.nrequests; i++)
		if (run.requests[i])
			return true;
	return false;
}

static bool any_is(enum bnet_incoming_state state)
{
	for (int i = 0; i < run.conn->nstreams; i++)
		if (run.conn->streams[i]->in.state == state)
			return true;
	return false;
}

/* ---- a run ---- */

static void step(struct script *script)
{
	const uint8_t byte = take(script);
	const int stream = byte / STEPS % run.nsenders;

	switch ((enum step)(byte % STEPS)) {
	case STEP_SEND:
		write_frame(stream, seal_slice(script, stream), HOW_WHOLE, 0);
		break;
	case STEP_SEAL:
		seal_slice(script, stream);
		break;
	case STEP_WRITE:
		write_again(script, stream);
		break;
	case STEP_RAW:
		write_raw(script, stream);
		break;
	case STEP_SAY:
		write_frame(stream, seal_word(script, stream), HOW_WHOLE, 0);
		break;
	case STEP_POST:
		post();
		break;
	case STEP_END:
	case STEP_RESET:
		end_stream(&run.senders[stream], byte % STEPS == STEP_RESET);
		break;
	case STEP_REPLACE:
		replace(script, &run.senders[stream]);
		break;
	case STEP_REAP:
		reap();
		break;
	case STEPS:
		break;
	}
	pass();
}

/* The part of a unit that has arrived, from its beginning on. */
static size_t arrived(const char *at, size_t size, char expected)
{
	size_t n = 0;

	while (n < size && at[n] == expected)
		n++;
	return n;
}

/* A unit of a buffer holds what was sealed for it, or the beginning of that, or nothing. */
static void look_into(int message, size_t unit, bool must_be_there)
{
	static const char nothing[BNET_UNIT];
	const size_t at = unit * BNET_UNIT, size = CAPACITY - at < BNET_UNIT ? CAPACITY - at : BNET_UNIT;
	const char *bytes = run.buffers[message] + at;
	const size_t n =
		run.messages[message].places[unit].sealed ? arrived(bytes, size, content((uint64_t)message, unit)) : 0;

	EXPECT(memcmp(bytes + n, nothing, size - n) == 0);
	if (must_be_there && run.messages[message].places[unit].whole)
		EXPECT(n > 0);
}

static void look_into_buffers(bool all_has_come)
{
	for (int i = 0; i < run.nrequests && !run.forged; i++)
		for (size_t unit = 0; unit * BNET_UNIT < CAPACITY; unit++)
			look_into(i, unit, all_has_come);
}

static void read_all(void)
{
	for (int i = 0; i < QUIET_PASSES; i++)
		pass();
	EXPECT(run.lied || !atomic_load(&run.conn->error));
	look_into_buffers(!run.lied && !any_is(BNET_INCOMING_STALLED));
}

/* A stream that is to come may bring what is missing. */
static bool awaits_repair(void)
{
	for (int i = 0; i < run.conn->nstreams; i++)
		if (run.conn->streams[i]->broken || run.conn->streams[i]->in.awaits)
			return true;
	return false;
}

static void end_all(void)
{
	int passes = 0;

	for (int i = 0; i < run.nsenders; i++)
		end_stream(&run.senders[i], false);
	while (any_is_outstanding() && !any_is(BNET_INCOMING_STALLED) && !(awaits_repair() && passes > QUIET_PASSES)) {
		pass();
		EXPECT(++passes < MOST_PASSES);
	}
	look_into_buffers(false);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
	(void)argc;
	(void)argv;
	use_secret(true);
	return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct script script = {data, size};
	const int descriptors = open_descriptors();

	memset(&run, 0, sizeof(run));
	run.kind = (enum kind)(take(&script) % KINDS);
	run.conn = bnet_conn_new(false, &device, &config, false);
	EXPECT(run.conn);
	run.conn->repairs = true;
	for (uint32_t serial = 1; serial <= 2; serial++)
		add_stream((struct bnet_stream_start){.serial = serial});
	while (script.left && run.nframes < FRAMES)
		step(&script);
	read_all();
	end_all();
	bnet_conn_free(run.conn);
	for (int i = 0; i < run.nsenders; i++)
		bnet_seal_free(run.senders[i].seal);
	for (int i = 0; i < run.nrequests; i++)
		free(run.buffers[i]);
	EXPECT(open_descriptors() == descriptors);
	return 0;
}
