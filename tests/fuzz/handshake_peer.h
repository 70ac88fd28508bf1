/* SPDX-License-Identifier: MIT
 *
 * The peers of fuzz_handshake.c: what they hear and say. A frame is said whole, in parts, cut or altered; one that is
 * whole proves what it is to prove, if its peer has heard what it answers.
 */
#ifndef BNET_HANDSHAKE_PEER_H
#define BNET_HANDSHAKE_PEER_H

#include <netinet/in.h>
#include <stdbool.h>
#include <sys/socket.h>

#include "handshake/proof.h"
#include "handshake/sealing.h"
#include "script.h"
#include "wire/wire.h"

#define FRAMES 8
#define ATTEMPTS 4
#define FIRST_ID 1000 /* of the library's own connections */
#define TYPES (BNET_WIRE_FRAME_CONFIRM + 1)

struct frame {
	uint8_t type;
	size_t size; /* 0: none */
	uint8_t bytes[BNET_WIRE_HANDSHAKE_MAX];
};

struct peer {
	int fd;                    /* -1: it has ended */
	int mine;                  /* the library's end */
	struct frame heard[TYPES]; /* the last ones that it was sent */
	bool proven[TYPES];        /* it has said one, as it was made for this handshake */
};

static struct {
	bool secret; /* there is one */
	int nframes;
	struct frame frames[FRAMES]; /* the last ones that peers have said */
	uint8_t drawn;
} talk;

static const uint8_t token[BNET_TOKEN_SIZE] = "a token of ours";

/* The library goes on, and peers hear it. */
static void look(void);

/* ---- what peers hear ---- */

static bool is_readable(const uint8_t *frame, size_t size)
{
	struct bnet_wire_hello hello;
	struct bnet_wire_welcome welcome;
	struct bnet_wire_question question;
	struct bnet_wire_answer answer;
	const uint8_t *body = frame + BNET_WIRE_FRAME_HEADER;

	size -= BNET_WIRE_FRAME_HEADER;
	switch (frame[0]) {
	case BNET_WIRE_FRAME_HELLO:
		return bnet_wire_hello_decode(body, size, &hello) == 0;
	case BNET_WIRE_FRAME_WELCOME:
		return bnet_wire_welcome_decode(body, size, &welcome) == 0;
	case BNET_WIRE_FRAME_QUESTION:
		return bnet_wire_question_decode(body, size, &question) == 0;
	case BNET_WIRE_FRAME_ANSWER:
		return bnet_wire_answer_decode(body, size, &answer) == 0;
	}
	return size == BNET_PROOF_SIZE;
}

/* With a secret, who has not proven that it knows it is told no more than that, or of another version. */
static bool may_hear(const struct peer *peer, const struct frame *frame)
{
	struct bnet_wire_welcome welcome;

	if (frame->type == BNET_WIRE_FRAME_CHALLENGE)
		return peer->proven[BNET_WIRE_FRAME_HELLO];
	if (frame->type == BNET_WIRE_FRAME_ANSWER)
		return peer->proven[BNET_WIRE_FRAME_QUESTION];
	if (frame->type != BNET_WIRE_FRAME_WELCOME || peer->proven[BNET_WIRE_FRAME_CONFIRM])
		return true;
	bnet_wire_welcome_decode(frame->bytes + BNET_WIRE_FRAME_HEADER, frame->size - BNET_WIRE_FRAME_HEADER, &welcome);
	return welcome.verdict == BNET_WIRE_VERDICT_VERSION || welcome.verdict == BNET_WIRE_VERDICT_SECRET;
}

static bool is_of_handshake(uint8_t type)
{
	return type == BNET_WIRE_FRAME_HELLO || type == BNET_WIRE_FRAME_WELCOME || type == BNET_WIRE_FRAME_QUESTION ||
	       type == BNET_WIRE_FRAME_ANSWER || type == BNET_WIRE_FRAME_CHALLENGE || type == BNET_WIRE_FRAME_CONFIRM;
}

static void hear_frame(struct peer *peer, const uint8_t *at, size_t size)
{
	struct frame *frame = &peer->heard[at[0]];

	EXPECT(size <= sizeof(frame->bytes));
	frame->type = at[0];
	frame->size = size;
	memcpy(frame->bytes, at, size);
	EXPECT(is_readable(frame->bytes, frame->size));
	EXPECT(!talk.secret || may_hear(peer, frame));
}

/* Each is written whole. What follows a handshake is not looked at. */
static void hear(struct peer *peer)
{
	static uint8_t bytes[1 << 17];
	const ssize_t n = peer->fd < 0 ? -1 : recv(peer->fd, bytes, sizeof(bytes), MSG_DONTWAIT);

	for (ssize_t at = 0; at < n && is_of_handshake(bytes[at]);) {
		struct bnet_wire_frame frame;

		EXPECT(n - at >= BNET_WIRE_FRAME_HEADER);
		bnet_wire_frame_decode(bytes + at, &frame);
		EXPECT((size_t)(n - at) >= BNET_WIRE_FRAME_HEADER + (size_t)frame.length);
		hear_frame(peer, bytes + at, BNET_WIRE_FRAME_HEADER + frame.length);
		at += BNET_WIRE_FRAME_HEADER + (ssize_t)frame.length;
	}
}

/* ---- what peers say ---- */

static void write_to(struct peer *peer, const uint8_t *bytes, size_t size)
{
	if (peer->fd >= 0)
		(void)!send(peer->fd, bytes, size, MSG_DONTWAIT | MSG_NOSIGNAL);
}

enum how {
	HOW_WHOLE,
	HOW_IN_PARTS,
	HOW_CUT, /* by a half at least: the rest is no guess */
	HOW_ALTERED,
	HOWS,
};

/* answers: the type of the frame that the peer must have been sent before; 0: none. */
static void say(struct script *script, struct peer *peer, const struct frame *frame, uint8_t answers)
{
	const uint8_t byte = take(script);
	const enum how how = (enum how)(byte % HOWS);
	const size_t part = how == HOW_CUT ? byte / HOWS % (frame->size / 2) : byte / HOWS % frame->size;
	struct frame said = *frame;

	happens(((unsigned)frame->type * HOWS + how) * 4 + 2 * talk.secret + (!answers || peer->heard[answers].size));
	if (how == HOW_ALTERED)
		said.bytes[part + (frame->size > 64 ? take(script) % (frame->size - 63) : 0)] ^= 1;
	if (how == HOW_WHOLE || how == HOW_IN_PARTS) {
		peer->proven[said.type] |= talk.secret && (!answers || peer->heard[answers].size);
		talk.frames[talk.nframes++ % FRAMES] = said;
	}
	if (how == HOW_IN_PARTS || how == HOW_CUT)
		write_to(peer, said.bytes, part);
	if (how == HOW_IN_PARTS)
		look();
	if (how != HOW_CUT)
		write_to(peer, said.bytes + (how == HOW_IN_PARTS ? part : 0),
			 said.size - (how == HOW_IN_PARTS ? part : 0));
}

static void draw(uint8_t proof[BNET_PROOF_NONCE])
{
	memset(proof, ++talk.drawn, BNET_PROOF_NONCE);
}

static const uint8_t *proof_in(const struct peer *peer, uint8_t type, size_t place)
{
	static const uint8_t none[BNET_PROOF_SIZE];

	return peer->heard[type].size >= place + BNET_PROOF_SIZE ? peer->heard[type].bytes + place : none;
}

static struct sockaddr_storage address_of(uint8_t byte)
{
	struct sockaddr_storage addr = {.ss_family = AF_INET};
	struct sockaddr_in *in = (struct sockaddr_in *)&addr;

	in->sin_addr.s_addr = htonl(INADDR_LOOPBACK + byte % 4);
	in->sin_port = htons((uint16_t)(1000 + byte));
	return addr;
}

/* Bits of the features' choice that the library does not have itself. */
static uint32_t features_of(uint8_t byte)
{
	return (bnet_sealing_features() | BNET_WIRE_FEATURE_REPAIR) ^ (byte & 0x80 ? byte & 0x7f : 0);
}

static void say_hello(struct script *script, struct peer *peer)
{
	const uint8_t what = take(script), features = take(script), stream = take(script), serial = take(script);
	struct bnet_wire_hello hello = {
		.version = BNET_WIRE_VERSION + (what % 16 == 15),
		.stream = stream % 4,
		.connection = stream / 4 % 4,
		.features = features_of(features),
		.proof_size = what & 0x20 ? 0 : bnet_proof_size(),
		.serial = serial % 8,
		.repairs = what & 0x40 ? serial / 8 % 8 : 0,
	};
	struct frame frame = {.type = BNET_WIRE_FRAME_HELLO};

	memcpy(hello.token, token, sizeof(token));
	hello.token[0] ^= what % 16 == 14;
	if (what & 0x80)
		hello.listener = address_of(what);
	draw(hello.proof);
	frame.size = bnet_wire_hello_encode(frame.bytes, &hello);
	if (hello.proof_size)
		bnet_proof_write(BNET_PROOF_HELLO, frame.bytes, frame.size, NULL);
	say(script, peer, &frame, 0);
}

static void say_proof(struct script *script, struct peer *peer, enum bnet_wire_frame_type type)
{
	const bool confirms = type == BNET_WIRE_FRAME_CONFIRM;
	const uint8_t answers = confirms ? BNET_WIRE_FRAME_CHALLENGE : BNET_WIRE_FRAME_HELLO;
	const size_t place = confirms ? BNET_WIRE_PROOF_PROOF : BNET_WIRE_HELLO_PROOF;
	struct frame frame = {.type = (uint8_t)type};
	uint8_t proof[BNET_PROOF_SIZE] = {0};

	draw(proof);
	frame.size = bnet_wire_proof_encode(frame.bytes, type, proof);
	bnet_proof_write(confirms ? BNET_PROOF_CONFIRM : BNET_PROOF_CHALLENGE, frame.bytes, frame.size,
			 proof_in(peer, answers, place));
	say(script, peer, &frame, answers);
}

static void say_welcome(struct script *script, struct peer *peer)
{
	const uint8_t what = take(script), features = take(script), addresses = take(script), position = take(script);
	const struct frame *hello = &peer->heard[BNET_WIRE_FRAME_HELLO];
	struct bnet_wire_welcome welcome = {
		.version = BNET_WIRE_VERSION,
		.verdict = what & 0x40 ? what % 8 : BNET_WIRE_VERDICT_OK,
		.max_streams = addresses / 8,
		.connection = FIRST_ID,
		.features = features_of(features),
		.proof_size = what & 0x20 ? 0 : bnet_proof_size(),
		.naddresses = addresses % 4,
		.repaired = !(what & 0x10),
		.position = (uint64_t)position * 100,
	};
	struct frame frame = {.type = BNET_WIRE_FRAME_WELCOME};
	struct bnet_wire_hello asked;

	if (hello->size && bnet_wire_hello_decode(hello->bytes + BNET_WIRE_FRAME_HEADER,
						  hello->size - BNET_WIRE_FRAME_HEADER, &asked) == 0)
		welcome.connection = asked.connection;
	for (int i = 0; i < welcome.naddresses; i++)
		welcome.addresses[i] = address_of((uint8_t)(addresses + i));
	draw(welcome.proof);
	frame.size = bnet_wire_welcome_encode(frame.bytes, &welcome);
	if (welcome.proof_size)
		bnet_proof_write(BNET_PROOF_WELCOME, frame.bytes, frame.size,
				 proof_in(peer, BNET_WIRE_FRAME_CONFIRM, BNET_WIRE_PROOF_PROOF));
	say(script, peer, &frame, BNET_WIRE_FRAME_CONFIRM);
}

static void say_question(struct script *script, struct peer *peer)
{
	const uint8_t what = take(script);
	struct bnet_wire_question question = {
		.version = BNET_WIRE_VERSION + (what % 16 == 15),
		.by_receiver = what & 0x20,
		.connection = what & 0x20 ? FIRST_ID + what % ATTEMPTS : what % 4,
		.proof_size = what & 0x40 ? 0 : bnet_proof_size(),
	};
	struct frame frame = {.type = BNET_WIRE_FRAME_QUESTION};

	memcpy(question.token, token, sizeof(token));
	draw(question.proof);
	frame.size = bnet_wire_question_encode(frame.bytes, &question);
	if (question.proof_size)
		bnet_proof_write(BNET_PROOF_QUESTION, frame.bytes, frame.size, NULL);
	say(script, peer, &frame, 0);
}

static void say_answer(struct script *script, struct peer *peer)
{
	const uint8_t what = take(script);
	const struct frame *question = &peer->heard[BNET_WIRE_FRAME_QUESTION];
	struct bnet_wire_answer answer = {
		.version = BNET_WIRE_VERSION,
		.verdict = what % 4,
		.moved_us = what,
		.received = what,
		.proof_size = bnet_proof_size(),
	};
	struct frame frame = {.type = BNET_WIRE_FRAME_ANSWER};
	struct bnet_wire_question asked;

	if (question->size && bnet_wire_question_decode(question->bytes + BNET_WIRE_FRAME_HEADER,
							question->size - BNET_WIRE_FRAME_HEADER, &asked) == 0)
		answer.connection = asked.connection;
	draw(answer.proof);
	frame.size = bnet_wire_answer_encode(frame.bytes, &answer);
	bnet_proof_write(BNET_PROOF_ANSWER, frame.bytes, frame.size,
			 proof_in(peer, BNET_WIRE_FRAME_QUESTION, BNET_WIRE_QUESTION_PROOF));
	say(script, peer, &frame, BNET_WIRE_FRAME_QUESTION);
}

/* What a peer has said, once more: it proves nothing that asks for an answer to something new. */
static void replay(struct script *script, struct peer *peer)
{
	const uint8_t which = take(script);
	const struct frame *frame = &talk.frames[which % FRAMES];

	if (frame->size == 0)
		return;
	write_to(peer, frame->bytes, frame->size);
	if (frame->type == BNET_WIRE_FRAME_HELLO || frame->type == BNET_WIRE_FRAME_QUESTION)
		peer->proven[frame->type] |= talk.secret;
}

static void say_anything(struct script *script, struct peer *peer)
{
	const uint8_t *bytes;
	const size_t size = take_bytes(script, &bytes, 1 + take(script) % 128);

	if (size)
		write_to(peer, bytes, size);
}

#endif
