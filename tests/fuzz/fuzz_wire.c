/* SPDX-License-Identifier: MIT
 *
 * Every decoder of wire.h on arbitrary bytes. A decoded value must encode to bytes that decode to the same value.
 */
#include <stdlib.h>
#include <string.h>

#include "base/address.h"
#include "wire/wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(int ok)
{
	if (!ok)
		abort();
}

static void handle(const uint8_t *data, size_t size)
{
	uint8_t bytes[BNET_WIRE_HANDLE_SIZE] = {0};
	struct bnet_wire_handle first, second;
	char text[BNET_ADDRESS_TEXT];

	memcpy(bytes, data, size < sizeof(bytes) ? size : sizeof(bytes));
	if (bnet_wire_handle_decode(bytes, &first) < 0)
		return;
	bnet_address_text(&first.addr, text);
	bnet_wire_handle_encode(bytes, &first);
	must(bnet_wire_handle_decode(bytes, &second) == 0);
	must(memcmp(&first.addr, &second.addr, sizeof(first.addr)) == 0);
}

static void hello(const uint8_t *data, size_t size)
{
	uint8_t bytes[BNET_WIRE_HELLO_MAX];
	struct bnet_wire_hello first, second;

	if (bnet_wire_hello_decode(data, size, &first) < 0)
		return;
	must(bnet_wire_hello_decode(bytes + BNET_WIRE_FRAME_HEADER,
				    bnet_wire_hello_encode(bytes, &first) - BNET_WIRE_FRAME_HEADER, &second) == 0);
	must(first.connection == second.connection && first.stream == second.stream);
}

static void welcome(const uint8_t *data, size_t size)
{
	uint8_t bytes[BNET_WIRE_WELCOME_MAX];
	struct bnet_wire_welcome first, second;

	if (bnet_wire_welcome_decode(data, size, &first) < 0)
		return;
	must(bnet_wire_welcome_decode(bytes + BNET_WIRE_FRAME_HEADER,
				      bnet_wire_welcome_encode(bytes, &first) - BNET_WIRE_FRAME_HEADER, &second) == 0);
	must(first.verdict == second.verdict && first.max_streams == second.max_streams);
	must(first.naddresses <= BNET_ADDRESSES && first.naddresses == second.naddresses);
	for (int i = 0; i < first.naddresses; i++) {
		must(first.addresses[i].ss_family != AF_UNSPEC);
		must(memcmp(&first.addresses[i], &second.addresses[i], sizeof(first.addresses[i])) == 0);
	}
}

/* A valid WELCOME before the input, since few inputs get as far as the appended addresses. */
static void appended(const uint8_t *data, size_t size)
{
	const struct bnet_wire_welcome known = {.version = BNET_WIRE_VERSION};
	uint8_t bytes[BNET_WIRE_WELCOME_MAX + 512];
	size_t used = bnet_wire_welcome_encode(bytes, &known);

	memcpy(bytes + used, data, size < 512 ? size : 512);
	welcome(bytes + BNET_WIRE_FRAME_HEADER, used - BNET_WIRE_FRAME_HEADER + (size < 512 ? size : 512));
}

static void question(const uint8_t *data, size_t size)
{
	uint8_t bytes[BNET_WIRE_QUESTION_MAX];
	struct bnet_wire_question first, second;

	if (bnet_wire_question_decode(data, size, &first) < 0)
		return;
	must(bnet_wire_question_decode(bytes + BNET_WIRE_FRAME_HEADER,
				       bnet_wire_question_encode(bytes, &first) - BNET_WIRE_FRAME_HEADER,
				       &second) == 0);
	must(first.version == second.version && first.connection == second.connection && first.rtt_us == second.rtt_us);
	must(first.proof_size == second.proof_size);
}

static void answer(const uint8_t *data, size_t size)
{
	uint8_t bytes[BNET_WIRE_ANSWER_MAX];
	struct bnet_wire_answer first, second;

	if (bnet_wire_answer_decode(data, size, &first) < 0)
		return;
	must(bnet_wire_answer_decode(bytes + BNET_WIRE_FRAME_HEADER,
				     bnet_wire_answer_encode(bytes, &first) - BNET_WIRE_FRAME_HEADER, &second) == 0);
	must(first.moved_us == second.moved_us && first.received == second.received && first.verdict == second.verdict);
	must(first.proof_size == second.proof_size);
}

static void slice(const uint8_t *data, size_t size)
{
	uint8_t bytes[BNET_WIRE_DATA_HEADER] = {0};
	struct bnet_wire_data d;

	memcpy(bytes, data, size < sizeof(bytes) ? size : sizeof(bytes));
	if (bnet_wire_data_decode(bytes, &d) < 0)
		return;
	must(d.offset <= d.size && d.length <= d.size - d.offset && d.offset % BNET_UNIT == 0);
	must(d.length % BNET_UNIT == 0 || d.offset + d.length == d.size);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	handle(data, size);
	hello(data, size);
	welcome(data, size);
	appended(data, size);
	question(data, size);
	answer(data, size);
	slice(data, size);
	return 0;
}
