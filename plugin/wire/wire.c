/* SPDX-License-Identifier: MIT
 *
 * Encoders and decoders of handles and frames; see wire.h. Any thread.
 */
#include "wire/wire.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>

#include "common/hash.h"

#define HANDLE_MAGIC 0x54454e42u /* "BNET": 0x4e42 is no address family */
#define HELLO_MAGIC 0x4f4c4842u
#define WELCOME_MAGIC 0x434c5742u
#define HELLO_FIXED 64
#define HELLO_SERIALS 8
#define WELCOME_FIXED 24
#define QUESTION_FIXED 40
#define ANSWER_FIXED 32
#define QUESTION_MAGIC 0x54535551u
#define ANSWER_MAGIC 0x57534e41u
#define ADDRESSES_FIXED 4 /* the count, then three zero bytes */

#define HANDLE_CHECK 44
#define HANDLE_ATTEMPT 48

static void put16(uint8_t *p, uint16_t v)
{
	p[0] = (uint8_t)v;
	p[1] = (uint8_t)(v >> 8);
}

static void put32(uint8_t *p, uint32_t v)
{
	put16(p, (uint16_t)v);
	put16(p + 2, (uint16_t)(v >> 16));
}

static void put64(uint8_t *p, uint64_t v)
{
	put32(p, (uint32_t)v);
	put32(p + 4, (uint32_t)(v >> 32));
}

static uint16_t get16(const uint8_t *p)
{
	return (uint16_t)(p[0] | p[1] << 8);
}

static uint32_t get32(const uint8_t *p)
{
	return get16(p) | (uint32_t)get16(p + 2) << 16;
}

static uint64_t get64(const uint8_t *p)
{
	return get32(p) | (uint64_t)get32(p + 4) << 32;
}

/* Detects a handle that was truncated or overwritten by accident, nothing more. */
static uint32_t checksum(const uint8_t handle[BNET_WIRE_HANDLE_SIZE])
{
	return bnet_fnv1a_32(handle, HANDLE_CHECK);
}

/* An address takes BNET_ADDRESS_SIZE bytes: family (4 or 6, 0: none), a zero byte, the port in network order, and 16
 * bytes, of which IPv4 uses 4. */
static void put_address(uint8_t *p, const struct sockaddr_storage *addr)
{
	memset(p, 0, BNET_ADDRESS_SIZE);
	if (addr->ss_family == AF_INET) {
		const struct sockaddr_in *in = (const struct sockaddr_in *)addr;

		p[0] = 4;
		memcpy(p + 2, &in->sin_port, 2);
		memcpy(p + 4, &in->sin_addr, 4);
	} else if (addr->ss_family == AF_INET6) {
		const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)addr;

		p[0] = 6;
		memcpy(p + 2, &in6->sin6_port, 2);
		memcpy(p + 4, &in6->sin6_addr, 16);
	}
}

static int get_address(const uint8_t *p, struct sockaddr_storage *addr)
{
	memset(addr, 0, sizeof(*addr));
	if (p[0] == 4) {
		struct sockaddr_in *in = (struct sockaddr_in *)addr;

		in->sin_family = AF_INET;
		memcpy(&in->sin_port, p + 2, 2);
		memcpy(&in->sin_addr, p + 4, 4);
	} else if (p[0] == 6) {
		struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)addr;

		in6->sin6_family = AF_INET6;
		memcpy(&in6->sin6_port, p + 2, 2);
		memcpy(&in6->sin6_addr, p + 4, 16);
	} else if (p[0] != 0) {
		return -EBADMSG;
	}
	return 0;
}

void bnet_wire_frame_encode(uint8_t out[BNET_WIRE_FRAME_HEADER], const struct bnet_wire_frame *frame)
{
	out[0] = frame->type;
	out[1] = frame->flags;
	put16(out + 2, 0);
	put32(out + 4, frame->length);
}

void bnet_wire_frame_decode(const uint8_t in[BNET_WIRE_FRAME_HEADER], struct bnet_wire_frame *frame)
{
	frame->type = in[0];
	frame->flags = in[1];
	frame->length = get32(in + 4);
}

uint32_t bnet_wire_frame_wants(const uint8_t *bytes, uint32_t there)
{
	struct bnet_wire_frame frame;

	if (there < BNET_WIRE_FRAME_HEADER)
		return BNET_WIRE_FRAME_HEADER;
	bnet_wire_frame_decode(bytes, &frame);
	return BNET_WIRE_FRAME_HEADER + frame.length;
}

void bnet_wire_handle_encode(uint8_t out[BNET_WIRE_HANDLE_SIZE], const struct bnet_wire_handle *handle)
{
	memset(out, 0, BNET_WIRE_HANDLE_SIZE);
	put32(out, HANDLE_MAGIC);
	out[4] = handle->version;
	memcpy(out + 8, handle->token, BNET_TOKEN_SIZE);
	put_address(out + 24, &handle->addr);
	put32(out + HANDLE_CHECK, checksum(out));
	put64(out + HANDLE_ATTEMPT, handle->attempt);
}

int bnet_wire_handle_decode(const uint8_t in[BNET_WIRE_HANDLE_SIZE], struct bnet_wire_handle *handle)
{
	if (get32(in) != HANDLE_MAGIC)
		return -EAFNOSUPPORT;
	if (get32(in + HANDLE_CHECK) != checksum(in))
		return -EBADMSG;
	handle->version = in[4];
	memcpy(handle->token, in + 8, BNET_TOKEN_SIZE);
	handle->attempt = get64(in + HANDLE_ATTEMPT);
	if (get_address(in + 24, &handle->addr) || handle->addr.ss_family == AF_UNSPEC)
		return -EBADMSG;
	return 0;
}

void bnet_wire_handle_set_attempt(uint8_t handle[BNET_WIRE_HANDLE_SIZE], uint64_t attempt)
{
	put64(handle + HANDLE_ATTEMPT, attempt);
}

static size_t finish(uint8_t *out, uint8_t type, size_t body)
{
	struct bnet_wire_frame frame = {.type = type, .length = (uint32_t)body};

	bnet_wire_frame_encode(out, &frame);
	return BNET_WIRE_FRAME_HEADER + body;
}

size_t bnet_wire_hello_encode(uint8_t out[BNET_WIRE_HELLO_MAX], const struct bnet_wire_hello *hello)
{
	uint8_t *p = out + BNET_WIRE_FRAME_HEADER;

	memset(p, 0, HELLO_FIXED);
	put32(p, HELLO_MAGIC);
	put16(p + 4, hello->version);
	put16(p + 6, hello->stream);
	put64(p + 8, hello->connection);
	memcpy(p + 16, hello->token, BNET_TOKEN_SIZE);
	put32(p + 32, hello->features);
	put_address(p + 36, &hello->listener);
	p[56] = hello->proof_size;
	memcpy(p + HELLO_FIXED, hello->proof, hello->proof_size);
	p += HELLO_FIXED + hello->proof_size;
	put32(p, hello->serial);
	put32(p + 4, hello->repairs);
	return finish(out, BNET_WIRE_FRAME_HELLO, HELLO_FIXED + hello->proof_size + HELLO_SERIALS);
}

int bnet_wire_hello_decode(const uint8_t *body, size_t size, struct bnet_wire_hello *hello)
{
	if (size < HELLO_FIXED || get32(body) != HELLO_MAGIC)
		return -EBADMSG;
	hello->version = get16(body + 4);
	hello->stream = get16(body + 6);
	hello->connection = get64(body + 8);
	memcpy(hello->token, body + 16, BNET_TOKEN_SIZE);
	hello->features = get32(body + 32);
	hello->proof_size = body[56];
	if (hello->proof_size > BNET_PROOF_MAX || hello->proof_size > size - HELLO_FIXED)
		return -EBADMSG;
	memcpy(hello->proof, body + HELLO_FIXED, hello->proof_size);
	hello->serial = hello->repairs = 0;
	if (size - HELLO_FIXED - hello->proof_size >= HELLO_SERIALS) {
		hello->serial = get32(body + HELLO_FIXED + hello->proof_size);
		hello->repairs = get32(body + HELLO_FIXED + hello->proof_size + 4);
	}
	return get_address(body + 36, &hello->listener);
}

/* A single address is not repeated here: nothing follows the proof. */
static size_t put_addresses(uint8_t *p, const struct bnet_wire_welcome *welcome)
{
	if (welcome->naddresses == 0 && !welcome->repaired)
		return 0;
	put32(p, welcome->naddresses);
	for (int i = 0; i < welcome->naddresses; i++)
		put_address(p + ADDRESSES_FIXED + i * BNET_ADDRESS_SIZE, &welcome->addresses[i]);
	return ADDRESSES_FIXED + (size_t)welcome->naddresses * BNET_ADDRESS_SIZE;
}

/* Bytes there are ignored if the peer's version differs. */
static int get_rest(const uint8_t *p, size_t size, struct bnet_wire_welcome *welcome)
{
	size_t addresses;

	welcome->naddresses = 0;
	welcome->repaired = false;
	welcome->position = 0;
	if (size == 0 || welcome->version != BNET_WIRE_VERSION)
		return 0;
	if (size < ADDRESSES_FIXED || p[0] > BNET_ADDRESSES ||
	    size - ADDRESSES_FIXED < (size_t)p[0] * BNET_ADDRESS_SIZE)
		return -EBADMSG;
	for (int i = 0; i < p[0]; i++) {
		struct sockaddr_storage *addr = &welcome->addresses[i];

		if (get_address(p + ADDRESSES_FIXED + i * BNET_ADDRESS_SIZE, addr) || addr->ss_family == AF_UNSPEC)
			return -EBADMSG;
	}
	welcome->naddresses = p[0];
	addresses = ADDRESSES_FIXED + (size_t)p[0] * BNET_ADDRESS_SIZE;
	welcome->repaired = size - addresses >= 8;
	if (welcome->repaired)
		welcome->position = get64(p + addresses);
	return 0;
}

size_t bnet_wire_welcome_encode(uint8_t out[BNET_WIRE_WELCOME_MAX], const struct bnet_wire_welcome *welcome)
{
	uint8_t *p = out + BNET_WIRE_FRAME_HEADER;
	size_t size = WELCOME_FIXED + welcome->proof_size;

	put32(p, WELCOME_MAGIC);
	put16(p + 4, welcome->version);
	put16(p + 6, welcome->verdict);
	put64(p + 8, welcome->connection);
	put16(p + 16, welcome->max_streams);
	p[18] = welcome->proof_size;
	p[19] = welcome->keepalive;
	put32(p + 20, welcome->features);
	memcpy(p + WELCOME_FIXED, welcome->proof, welcome->proof_size);
	size += put_addresses(p + size, welcome);
	if (welcome->repaired) {
		put64(p + size, welcome->position);
		size += 8;
	}
	return finish(out, BNET_WIRE_FRAME_WELCOME, size);
}

int bnet_wire_welcome_decode(const uint8_t *body, size_t size, struct bnet_wire_welcome *welcome)
{
	size_t known;

	if (size < WELCOME_FIXED || get32(body) != WELCOME_MAGIC)
		return -EBADMSG;
	welcome->version = get16(body + 4);
	welcome->verdict = get16(body + 6);
	welcome->connection = get64(body + 8);
	welcome->max_streams = get16(body + 16);
	welcome->proof_size = body[18];
	welcome->keepalive = body[19];
	welcome->features = get32(body + 20);
	if (welcome->proof_size > BNET_PROOF_MAX || welcome->proof_size > size - WELCOME_FIXED)
		return -EBADMSG;
	memcpy(welcome->proof, body + WELCOME_FIXED, welcome->proof_size);
	known = WELCOME_FIXED + welcome->proof_size;
	return get_rest(body + known, size - known, welcome);
}

/* What follows the fixed part of a QUESTION or ANSWER. */
static uint8_t get_proof(const uint8_t *rest, size_t size, uint8_t proof[BNET_PROOF_SIZE])
{
	if (size < BNET_PROOF_SIZE)
		return 0;
	memcpy(proof, rest, BNET_PROOF_SIZE);
	return BNET_PROOF_SIZE;
}

size_t bnet_wire_question_encode(uint8_t out[BNET_WIRE_QUESTION_MAX], const struct bnet_wire_question *question)
{
	uint8_t *p = out + BNET_WIRE_FRAME_HEADER;

	put32(p, QUESTION_MAGIC);
	put16(p + 4, question->version);
	put16(p + 6, question->by_receiver);
	put64(p + 8, question->connection);
	memcpy(p + 16, question->token, BNET_TOKEN_SIZE);
	put32(p + 32, question->rtt_us);
	put32(p + 36, 0);
	memcpy(p + QUESTION_FIXED, question->proof, question->proof_size);
	return finish(out, BNET_WIRE_FRAME_QUESTION, QUESTION_FIXED + question->proof_size);
}

int bnet_wire_question_decode(const uint8_t *body, size_t size, struct bnet_wire_question *question)
{
	if (size < QUESTION_FIXED || get32(body) != QUESTION_MAGIC)
		return -EBADMSG;
	question->version = get16(body + 4);
	question->by_receiver = get16(body + 6) == 1;
	question->connection = get64(body + 8);
	memcpy(question->token, body + 16, BNET_TOKEN_SIZE);
	question->rtt_us = get32(body + 32);
	question->proof_size = get_proof(body + QUESTION_FIXED, size - QUESTION_FIXED, question->proof);
	return 0;
}

size_t bnet_wire_answer_encode(uint8_t out[BNET_WIRE_ANSWER_MAX], const struct bnet_wire_answer *answer)
{
	uint8_t *p = out + BNET_WIRE_FRAME_HEADER;

	put32(p, ANSWER_MAGIC);
	put16(p + 4, answer->version);
	put16(p + 6, answer->verdict);
	put64(p + 8, answer->connection);
	put64(p + 16, answer->moved_us);
	put64(p + 24, answer->received);
	memcpy(p + ANSWER_FIXED, answer->proof, answer->proof_size);
	return finish(out, BNET_WIRE_FRAME_ANSWER, ANSWER_FIXED + answer->proof_size);
}

int bnet_wire_answer_decode(const uint8_t *body, size_t size, struct bnet_wire_answer *answer)
{
	if (size < ANSWER_FIXED || get32(body) != ANSWER_MAGIC)
		return -EBADMSG;
	answer->version = get16(body + 4);
	answer->verdict = get16(body + 6);
	answer->connection = get64(body + 8);
	answer->moved_us = get64(body + 16);
	answer->received = get64(body + 24);
	answer->proof_size = get_proof(body + ANSWER_FIXED, size - ANSWER_FIXED, answer->proof);
	return 0;
}

static bool is_frame(const struct bnet_wire_frame *frame, uint8_t type, uint32_t least)
{
	return frame->type == type && frame->length >= least &&
	       frame->length <= BNET_WIRE_HANDSHAKE_MAX - BNET_WIRE_FRAME_HEADER;
}

bool bnet_wire_frame_is_hello(const struct bnet_wire_frame *frame)
{
	return is_frame(frame, BNET_WIRE_FRAME_HELLO, HELLO_FIXED);
}

bool bnet_wire_frame_is_welcome(const struct bnet_wire_frame *frame)
{
	return is_frame(frame, BNET_WIRE_FRAME_WELCOME, WELCOME_FIXED);
}

bool bnet_wire_frame_is_question(const struct bnet_wire_frame *frame)
{
	return is_frame(frame, BNET_WIRE_FRAME_QUESTION, QUESTION_FIXED);
}

bool bnet_wire_frame_is_answer(const struct bnet_wire_frame *frame)
{
	return is_frame(frame, BNET_WIRE_FRAME_ANSWER, ANSWER_FIXED);
}

size_t bnet_wire_proof_encode(uint8_t out[BNET_WIRE_PROOF_SIZE], enum bnet_wire_frame_type type,
			      const uint8_t proof[BNET_PROOF_SIZE])
{
	memcpy(out + BNET_WIRE_FRAME_HEADER, proof, BNET_PROOF_SIZE);
	return finish(out, (uint8_t)type, BNET_PROOF_SIZE);
}

bool bnet_wire_frame_is_challenge(const struct bnet_wire_frame *frame)
{
	return is_frame(frame, BNET_WIRE_FRAME_CHALLENGE, BNET_PROOF_SIZE);
}

bool bnet_wire_frame_is_confirm(const struct bnet_wire_frame *frame)
{
	return is_frame(frame, BNET_WIRE_FRAME_CONFIRM, BNET_PROOF_SIZE);
}

void bnet_wire_data_encode(uint8_t out[BNET_WIRE_DATA_HEADER], const struct bnet_wire_data *data)
{
	struct bnet_wire_frame frame = {
		.type = BNET_WIRE_FRAME_DATA,
		.length = BNET_WIRE_DATA_HEADER - BNET_WIRE_FRAME_HEADER + data->length,
	};

	bnet_wire_frame_encode(out, &frame);
	put64(out + 8, data->message);
	put64(out + 16, data->size);
	put64(out + 24, data->offset);
}

int bnet_wire_data_decode(const uint8_t in[BNET_WIRE_DATA_HEADER], struct bnet_wire_data *data)
{
	struct bnet_wire_frame frame;

	bnet_wire_frame_decode(in, &frame);
	if (frame.type != BNET_WIRE_FRAME_DATA || frame.length < BNET_WIRE_DATA_HEADER - BNET_WIRE_FRAME_HEADER)
		return -EBADMSG;
	data->message = get64(in + 8);
	data->size = get64(in + 16);
	data->offset = get64(in + 24);
	data->length = frame.length - (BNET_WIRE_DATA_HEADER - BNET_WIRE_FRAME_HEADER);
	if (data->offset > data->size || data->length > data->size - data->offset || data->offset % BNET_UNIT)
		return -EBADMSG;
	if (data->length % BNET_UNIT && data->offset + data->length != data->size)
		return -EBADMSG;
	if (data->length == 0 && data->size != 0)
		return -EBADMSG;
	return 0;
}
