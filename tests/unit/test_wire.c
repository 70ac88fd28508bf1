/* SPDX-License-Identifier: MIT
 *
 * Handles and frames: encoding and decoding are inverse, and bytes that no plugin sends are refused.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>

#include "base/address.h"
#include "check.h"
#include "wire/wire.h"

static struct sockaddr_storage address(const char *text, uint16_t port)
{
	struct sockaddr_storage addr;

	memset(&addr, 0, sizeof(addr));
	if (strchr(text, ':')) {
		struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)&addr;

		in6->sin6_family = AF_INET6;
		in6->sin6_port = htons(port);
		check_int(inet_pton(AF_INET6, text, &in6->sin6_addr), 1);
	} else {
		struct sockaddr_in *in = (struct sockaddr_in *)&addr;

		in->sin_family = AF_INET;
		in->sin_port = htons(port);
		check_int(inet_pton(AF_INET, text, &in->sin_addr), 1);
	}
	return addr;
}

static void test_handle(const char *text)
{
	struct bnet_wire_handle in = {.version = 1, .addr = address(text, 4711), .attempt = 0}, out;
	uint8_t bytes[BNET_WIRE_HANDLE_SIZE];
	uint16_t family;

	memset(in.token, 0xa5, sizeof(in.token));
	bnet_wire_handle_encode(bytes, &in);
	check_int(bnet_wire_handle_decode(bytes, &out), 0);
	check_int(out.version, 1);
	check_int(memcmp(&out.addr, &in.addr, sizeof(in.addr)), 0);
	check_int(memcmp(out.token, in.token, sizeof(in.token)), 0);
	check_int((long long)out.attempt, 0);

	/* The checksum does not cover the connector's attempt. */
	bnet_wire_handle_set_attempt(bytes, UINT64_C(0x1122334455667788));
	check_int(bnet_wire_handle_decode(bytes, &out), 0);
	check(out.attempt == UINT64_C(0x1122334455667788));

	memcpy(&family, bytes, sizeof(family));
	check(family > 255); /* far beyond every address family */

	for (int i = 0; i < 44; i++) {
		bytes[i] ^= 0x10;
		check(bnet_wire_handle_decode(bytes, &out) < 0);
		bytes[i] ^= 0x10;
	}
}

static void test_foreign_handle(void)
{
	uint8_t bytes[BNET_WIRE_HANDLE_SIZE] = {0};
	struct sockaddr_storage addr = address("10.0.0.1", 80);
	struct bnet_wire_handle out;

	check_int(bnet_wire_handle_decode(bytes, &out), -EAFNOSUPPORT);
	memcpy(bytes, &addr, sizeof(struct sockaddr_in));
	check_int(bnet_wire_handle_decode(bytes, &out), -EAFNOSUPPORT);
}

static void test_hello(void)
{
	struct bnet_wire_hello in = {
		.version = 1,
		.stream = 7,
		.connection = UINT64_C(0xfedcba9876543210),
		.features = 3,
		.listener = address("fe80::1", 999),
		.proof_size = BNET_PROOF_MAX,
		.serial = 0x89abcdef,
		.repairs = 3,
	};
	struct bnet_wire_hello out;
	uint8_t bytes[BNET_WIRE_HELLO_MAX];
	struct bnet_wire_frame frame;
	size_t size;

	memset(in.token, 1, sizeof(in.token));
	memset(in.proof, 2, sizeof(in.proof));
	size = bnet_wire_hello_encode(bytes, &in);
	check_int(size, BNET_WIRE_HELLO_MAX);
	bnet_wire_frame_decode(bytes, &frame);
	check(bnet_wire_frame_is_hello(&frame) && !bnet_wire_frame_is_welcome(&frame));
	check_int(frame.length, size - BNET_WIRE_FRAME_HEADER);
	check_int(bnet_wire_hello_decode(bytes + BNET_WIRE_FRAME_HEADER, frame.length, &out), 0);
	check_int(out.version, 1);
	check_int(out.stream, 7);
	check(out.connection == in.connection);
	check_int(out.features, 3);
	check_int(memcmp(out.token, in.token, sizeof(in.token)), 0);
	check_int(memcmp(&out.listener, &in.listener, sizeof(in.listener)), 0);
	check_int(memcmp(out.proof, in.proof, sizeof(in.proof)), 0);

	check_int(out.serial, in.serial);
	check_int(out.repairs, in.repairs);

	/* Refused if truncated anywhere, or if the magic number is wrong; an older sender's ends before the serials. */
	for (uint32_t n = 0; n < frame.length - 8; n++)
		check_int(bnet_wire_hello_decode(bytes + BNET_WIRE_FRAME_HEADER, n, &out), -EBADMSG);
	check_int(bnet_wire_hello_decode(bytes + BNET_WIRE_FRAME_HEADER, frame.length - 8, &out), 0);
	check_int(out.serial, 0);
	check_int(out.repairs, 0);
	bytes[BNET_WIRE_FRAME_HEADER] ^= 1;
	check_int(bnet_wire_hello_decode(bytes + BNET_WIRE_FRAME_HEADER, frame.length, &out), -EBADMSG);
}

static void test_question(void)
{
	struct bnet_wire_question in = {.version = 1, .connection = 1ull << 63}, out;
	uint8_t bytes[BNET_WIRE_QUESTION_MAX];
	struct bnet_wire_frame frame;

	memset(in.token, 7, sizeof(in.token));
	check_int(bnet_wire_question_encode(bytes, &in), BNET_WIRE_QUESTION_SIZE);
	bnet_wire_frame_decode(bytes, &frame);
	check(bnet_wire_frame_is_question(&frame) && !bnet_wire_frame_is_hello(&frame) &&
	      !bnet_wire_frame_is_answer(&frame));
	check_int(bnet_wire_question_decode(bytes + BNET_WIRE_FRAME_HEADER, frame.length, &out), 0);
	check(out.version == 1 && out.connection == in.connection);
	check(memcmp(out.token, in.token, sizeof(in.token)) == 0);
	for (size_t n = 0; n < frame.length; n++)
		check_int(bnet_wire_question_decode(bytes + BNET_WIRE_FRAME_HEADER, n, &out), -EBADMSG);

	/* A proof that is cut off is none. */
	in.proof_size = BNET_PROOF_SIZE;
	memset(in.proof, 9, sizeof(in.proof));
	check_int(bnet_wire_question_encode(bytes, &in), sizeof(bytes));
	check_int(memcmp(bytes + BNET_WIRE_QUESTION_PROOF, in.proof, sizeof(in.proof)), 0);
	for (size_t n = frame.length; n <= frame.length + BNET_PROOF_SIZE; n++) {
		check_int(bnet_wire_question_decode(bytes + BNET_WIRE_FRAME_HEADER, n, &out), 0);
		check_int(out.proof_size, n == frame.length + BNET_PROOF_SIZE ? BNET_PROOF_SIZE : 0);
	}
	check_int(memcmp(out.proof, in.proof, sizeof(in.proof)), 0);
}

static void test_answer(void)
{
	struct bnet_wire_answer in = {.version = 1,
				      .verdict = BNET_WIRE_VERDICT_GONE,
				      .connection = 5,
				      .moved_us = 1ull << 50,
				      .received = 1ull << 60},
				out;
	uint8_t bytes[BNET_WIRE_ANSWER_MAX];
	struct bnet_wire_frame frame;

	check_int(bnet_wire_answer_encode(bytes, &in), BNET_WIRE_ANSWER_SIZE);
	bnet_wire_frame_decode(bytes, &frame);
	check(bnet_wire_frame_is_answer(&frame) && !bnet_wire_frame_is_welcome(&frame));
	check_int(bnet_wire_answer_decode(bytes + BNET_WIRE_FRAME_HEADER, frame.length, &out), 0);
	check(out.verdict == in.verdict && out.connection == 5 && out.moved_us == in.moved_us &&
	      out.received == in.received);
	for (size_t n = 0; n < frame.length; n++)
		check_int(bnet_wire_answer_decode(bytes + BNET_WIRE_FRAME_HEADER, n, &out), -EBADMSG);

	in.proof_size = BNET_PROOF_SIZE;
	memset(in.proof, 9, sizeof(in.proof));
	check_int(bnet_wire_answer_encode(bytes, &in), sizeof(bytes));
	check_int(memcmp(bytes + BNET_WIRE_ANSWER_PROOF, in.proof, sizeof(in.proof)), 0);
	for (size_t n = frame.length; n <= frame.length + BNET_PROOF_SIZE; n++) {
		check_int(bnet_wire_answer_decode(bytes + BNET_WIRE_FRAME_HEADER, n, &out), 0);
		check_int(out.proof_size, n == frame.length + BNET_PROOF_SIZE ? BNET_PROOF_SIZE : 0);
	}
	check_int(memcmp(out.proof, in.proof, sizeof(in.proof)), 0);
}

static void test_welcome(void)
{
	struct bnet_wire_welcome in = {.version = 2,
				       .verdict = BNET_WIRE_VERDICT_GONE,
				       .max_streams = 64,
				       .keepalive = 240,
				       .connection = 5};
	struct bnet_wire_welcome out;
	uint8_t bytes[BNET_WIRE_WELCOME_MAX];
	struct bnet_wire_frame frame;
	size_t size = bnet_wire_welcome_encode(bytes, &in);

	bnet_wire_frame_decode(bytes, &frame);
	check(bnet_wire_frame_is_welcome(&frame) && !bnet_wire_frame_is_hello(&frame));
	check_int(frame.length, size - BNET_WIRE_FRAME_HEADER);
	check_int(bnet_wire_welcome_decode(bytes + BNET_WIRE_FRAME_HEADER, frame.length, &out), 0);
	check_int(out.version, 2);
	check_int(out.verdict, BNET_WIRE_VERDICT_GONE);
	check_int(out.max_streams, 64);
	check_int(out.keepalive, 240);
	check_int((long long)out.connection, 5);
	for (uint32_t n = 0; n < frame.length; n++)
		check_int(bnet_wire_welcome_decode(bytes + BNET_WIRE_FRAME_HEADER, n, &out), -EBADMSG);
}

/* Older readers stop at the proof, and older writers end there. */
static void test_welcome_addresses(void)
{
	struct bnet_wire_welcome in = {.version = BNET_WIRE_VERSION, .connection = 9, .proof_size = BNET_PROOF_MAX},
				 out;
	uint8_t bytes[BNET_WIRE_WELCOME_MAX + 32] = {0};
	size_t without = bnet_wire_welcome_encode(bytes, &in), size;
	struct bnet_wire_frame frame;

	check_int(bnet_wire_welcome_decode(bytes + BNET_WIRE_FRAME_HEADER, without - BNET_WIRE_FRAME_HEADER, &out), 0);
	check_int(out.naddresses, 0);

	in.naddresses = BNET_ADDRESSES;
	for (int i = 0; i < BNET_ADDRESSES; i++)
		in.addresses[i] = address(i % 2 ? "10.1.2.3" : "fd00::7", (uint16_t)(1000 + i));
	size = bnet_wire_welcome_encode(bytes, &in);
	check_int(size, BNET_WIRE_WELCOME_MAX - 8);
	bnet_wire_frame_decode(bytes, &frame);
	check(bnet_wire_frame_is_welcome(&frame));
	check_int(bnet_wire_welcome_decode(bytes + BNET_WIRE_FRAME_HEADER, frame.length, &out), 0);
	check_int(out.naddresses, BNET_ADDRESSES);
	check_int(memcmp(out.addresses, in.addresses, sizeof(in.addresses)), 0);

	/* Refused if truncated within the list; bytes that a later version appends are ignored. */
	for (size_t n = without + 1; n < size; n++)
		check_int(bnet_wire_welcome_decode(bytes + BNET_WIRE_FRAME_HEADER, n - BNET_WIRE_FRAME_HEADER, &out),
			  -EBADMSG);
	check_int(bnet_wire_welcome_decode(bytes + BNET_WIRE_FRAME_HEADER, frame.length + 32, &out), 0);
	check_int(out.naddresses, BNET_ADDRESSES);

	/* Too many addresses, an address without a family, and the same bytes from another version. */
	bytes[without]++;
	check_int(bnet_wire_welcome_decode(bytes + BNET_WIRE_FRAME_HEADER, frame.length + 32, &out), -EBADMSG);
	bytes[without]--;
	bytes[without + 4] = 0;
	check_int(bnet_wire_welcome_decode(bytes + BNET_WIRE_FRAME_HEADER, frame.length, &out), -EBADMSG);
	in.version = BNET_WIRE_VERSION + 1;
	bnet_wire_welcome_encode(bytes, &in);
	check_int(bnet_wire_welcome_decode(bytes + BNET_WIRE_FRAME_HEADER, frame.length, &out), 0);
	check_int(out.naddresses, 0);
}

/* The position is behind the list of addresses, which may be empty. */
static void test_welcome_position(void)
{
	struct bnet_wire_welcome in = {.version = BNET_WIRE_VERSION, .repaired = true, .position = 7}, out;
	uint8_t bytes[BNET_WIRE_WELCOME_MAX];

	for (in.naddresses = 0; in.naddresses <= 1; in.naddresses++) {
		size_t size;

		in.addresses[0] = address("10.1.2.3", 1);
		size = bnet_wire_welcome_encode(bytes, &in) - BNET_WIRE_FRAME_HEADER;
		check_int(bnet_wire_welcome_decode(bytes + BNET_WIRE_FRAME_HEADER, size, &out), 0);
		check(out.repaired && out.position == 7 && out.naddresses == in.naddresses);
		check_int(bnet_wire_welcome_decode(bytes + BNET_WIRE_FRAME_HEADER, size - 1, &out), 0);
		check(!out.repaired);
	}
}

static int decode(uint64_t size, uint64_t offset, uint32_t length)
{
	struct bnet_wire_data in = {.message = UINT64_C(1) << 40, .size = size, .offset = offset, .length = length},
			      out;
	uint8_t bytes[BNET_WIRE_DATA_HEADER];
	int rc;

	bnet_wire_data_encode(bytes, &in);
	rc = bnet_wire_data_decode(bytes, &out);
	if (rc == 0)
		check(out.message == in.message && out.size == size && out.offset == offset && out.length == length);
	return rc;
}

static void test_data(void)
{
	static const struct {
		uint64_t size, offset;
		uint32_t length;
		int rc;
	} cases[] = {
		{0, 0, 0, 0},
		{1, 0, 1, 0},
		{4096, 0, 4096, 0},
		{10000, 4096, 4096, 0},
		{10000, 8192, 1808, 0},
		{UINT64_C(1) << 40, UINT64_C(1) << 39, 1 << 30, 0},
		{10000, 100, 4096, -EBADMSG},  /* begins inside a unit */
		{10000, 0, 100, -EBADMSG},     /* ends inside a unit, before the message's end */
		{10000, 8192, 4096, -EBADMSG}, /* reaches past the end */
		{10000, 12288, 0, -EBADMSG},   /* begins past the end */
		{10000, 0, 0, -EBADMSG},       /* an empty slice of a non-empty message */
		{UINT64_MAX, UINT64_MAX - 4095, 4096, -EBADMSG},
		{4096, UINT64_C(1) << 63, 4096, -EBADMSG},
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		check_int(decode(cases[i].size, cases[i].offset, cases[i].length), cases[i].rc);
}

static void test_address_text(void)
{
	struct sockaddr_storage v4 = address("10.0.0.4", 1234), v6 = address("fe80::1", 1234), none;
	char text[BNET_ADDRESS_TEXT];

	memset(&none, 0, sizeof(none));
	check_str(bnet_address_text(&v4, text), "10.0.0.4:1234");
	check_str(bnet_address_text(&v6, text), "[fe80::1]:1234");
	check_str(bnet_address_text(&none, text), "an unknown address");
}

int main(void)
{
	test_handle("10.0.0.4");
	test_handle("2001:db8::17");
	test_foreign_handle();
	test_hello();
	test_question();
	test_answer();
	test_welcome();
	test_welcome_addresses();
	test_welcome_position();
	test_data();
	test_address_text();
	return 0;
}
