/* SPDX-License-Identifier: MIT
 *
 * Proofs of identity: each byte of a frame, its kind, the frame that it answers and the secret are bound. The MAC is
 * that of RFC 4231.
 */
#include "handshake/proof.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/crypto.h"
#include "base/secret.h"
#include "check.h"

#define SKIPPED 77

static char file[] = "/tmp/bnet-proof-XXXXXX";

static void use_secret(const char *text)
{
	char line[BNET_SECRET_LINE];
	int fd = open(file, O_WRONLY | O_TRUNC | O_CLOEXEC);

	check_int(write(fd, text, strlen(text)), (long long)strlen(text));
	close(fd);
	check_int(bnet_secret_load(file, line, sizeof(line)), 0);
}

static void the_mac_is_the_published_one(void)
{
	static const uint8_t expected[BNET_SHA256_SIZE] = {
		0x5b, 0xdc, 0xc1, 0x46, 0xbf, 0x60, 0x75, 0x4e, 0x6a, 0x04, 0x24, 0x26, 0x08, 0x95, 0x75, 0xc7,
		0x5a, 0x00, 0x3f, 0x08, 0x9d, 0x27, 0x39, 0x83, 0x9d, 0xec, 0x58, 0xb9, 0x64, 0xec, 0x38, 0x43,
	}; /* test case 2 */
	static const char data[] = "what do ya want for nothing?";
	uint8_t mac[BNET_SHA256_SIZE];

	check_int(bnet_crypto_hmac((const uint8_t *)"Jefe", 4, (const uint8_t *)data, sizeof(data) - 1, mac), 0);
	check(bnet_crypto_equal(mac, expected, sizeof(mac)));
	mac[31] ^= 1;
	check(!bnet_crypto_equal(mac, expected, sizeof(mac)));
}

static bool holds(enum bnet_proof kind, const uint8_t *frame, size_t size, const uint8_t *answered_by)
{
	const int rc = bnet_proof_check(kind, frame, size, answered_by);

	check(rc == 0 || rc == -EACCES);
	return rc == 0;
}

static size_t hello(uint8_t out[BNET_WIRE_HELLO_MAX])
{
	struct bnet_wire_hello wire = {
		.version = BNET_WIRE_VERSION,
		.stream = 3,
		.connection = 42,
		.proof_size = bnet_proof_size(),
		.serial = 9,
		.repairs = 4,
	};

	memset(wire.token, 7, sizeof(wire.token));
	return bnet_wire_hello_encode(out, &wire);
}

static size_t welcome(uint8_t out[BNET_WIRE_WELCOME_MAX])
{
	struct bnet_wire_welcome wire = {
		.version = BNET_WIRE_VERSION,
		.connection = 42,
		.proof_size = bnet_proof_size(),
		.repaired = true,
		.position = 1 << 20,
	};

	return bnet_wire_welcome_encode(out, &wire);
}

static size_t question(uint8_t out[BNET_WIRE_QUESTION_MAX])
{
	struct bnet_wire_question wire = {.version = BNET_WIRE_VERSION,
					  .connection = 42,
					  .proof_size = bnet_proof_size()};

	return bnet_wire_question_encode(out, &wire);
}

static size_t answer(uint8_t out[BNET_WIRE_ANSWER_MAX])
{
	struct bnet_wire_answer wire = {.version = BNET_WIRE_VERSION,
					.connection = 42,
					.proof_size = bnet_proof_size()};

	return bnet_wire_answer_encode(out, &wire);
}

static size_t challenge(uint8_t out[BNET_WIRE_PROOF_SIZE])
{
	static const uint8_t proof[BNET_PROOF_SIZE];

	return bnet_wire_proof_encode(out, BNET_WIRE_FRAME_CHALLENGE, proof);
}

static size_t confirm(uint8_t out[BNET_WIRE_PROOF_SIZE])
{
	static const uint8_t proof[BNET_PROOF_SIZE];

	return bnet_wire_proof_encode(out, BNET_WIRE_FRAME_CONFIRM, proof);
}

/* Where its proof is. */
static const struct {
	enum bnet_proof kind;
	size_t (*encode)(uint8_t *out);
	bool answers;
	size_t place;
} frames[] = {
	{BNET_PROOF_HELLO, hello, false, BNET_WIRE_HELLO_PROOF},
	{BNET_PROOF_CHALLENGE, challenge, true, BNET_WIRE_PROOF_PROOF},
	{BNET_PROOF_CONFIRM, confirm, true, BNET_WIRE_PROOF_PROOF},
	{BNET_PROOF_WELCOME, welcome, true, BNET_WIRE_WELCOME_PROOF},
	{BNET_PROOF_QUESTION, question, false, BNET_WIRE_QUESTION_PROOF},
	{BNET_PROOF_ANSWER, answer, true, BNET_WIRE_ANSWER_PROOF},
};

static const uint8_t answered[BNET_PROOF_SIZE] = {1, 2, 3};

/* A frame with its proof, for this secret. */
static size_t proven(int i, uint8_t out[BNET_WIRE_HANDSHAKE_MAX])
{
	size_t size = frames[i].encode(out);

	check_int(bnet_proof_draw(out + frames[i].place), 0);
	check_int(bnet_proof_write(frames[i].kind, out, size, frames[i].answers ? answered : NULL), 0);
	check(holds(frames[i].kind, out, size, frames[i].answers ? answered : NULL));
	return size;
}

static void everything_is_bound(int i)
{
	uint8_t frame[BNET_WIRE_HANDSHAKE_MAX] = {0}, changed[BNET_PROOF_SIZE];
	const uint8_t *of = frames[i].answers ? answered : NULL;
	const size_t size = proven(i, frame);

	for (size_t at = 0; at < size; at++)
		for (int bit = 0; bit < 8; bit++) {
			frame[at] ^= (uint8_t)(1 << bit);
			check(!holds(frames[i].kind, frame, size, of));
			frame[at] ^= (uint8_t)(1 << bit);
		}
	for (size_t shorter = 0; shorter < size; shorter++)
		check(!holds(frames[i].kind, frame, shorter, of));
	check(!holds(frames[i].kind, frame, size + 1, of));
	for (size_t at = 0; at < sizeof(changed); at++) {
		memcpy(changed, answered, sizeof(changed));
		if (!of)
			memset(changed, 0, sizeof(changed));
		changed[at] ^= 0x80;
		check(!holds(frames[i].kind, frame, size, changed));
	}
	for (size_t other = 0; other < sizeof(frames) / sizeof(frames[0]); other++)
		check_int(holds(frames[other].kind, frame, size, of), (int)other == i);
	use_secret("another secret, as long");
	check(!holds(frames[i].kind, frame, size, of));
	use_secret("the secret of this test");
	check(holds(frames[i].kind, frame, size, of));
}

/* Otherwise who sees two of them knows that they are alike, and a listener could be shown the same one again. */
static void no_two_proofs_are_alike(void)
{
	uint8_t first[BNET_WIRE_HANDSHAKE_MAX], second[BNET_WIRE_HANDSHAKE_MAX];

	proven(0, first);
	proven(0, second);
	check(memcmp(first + BNET_WIRE_HELLO_PROOF, second + BNET_WIRE_HELLO_PROOF, BNET_PROOF_NONCE) != 0);
	check(memcmp(first + BNET_WIRE_HELLO_PROOF + BNET_PROOF_NONCE,
		     second + BNET_WIRE_HELLO_PROOF + BNET_PROOF_NONCE, BNET_SHA256_SIZE) != 0);
}

static void without_a_secret(void)
{
	uint8_t frame[BNET_WIRE_HANDSHAKE_MAX];
	char line[BNET_SECRET_LINE];
	const size_t size = proven(0, frame);

	check_int(bnet_secret_load("", line, sizeof(line)), 0);
	check_int(bnet_proof_size(), 0);
	check(!holds(BNET_PROOF_HELLO, frame, size, NULL));
	check_int(bnet_proof_write(BNET_PROOF_HELLO, frame, hello(frame), NULL), 0);
}

int main(void)
{
	char why[128];

	if (bnet_crypto_load(why, sizeof(why)) < 0) {
		fprintf(stderr, "skipped: %s\n", why);
		return SKIPPED;
	}
	close(mkostemp(file, O_CLOEXEC));
	use_secret("the secret of this test");
	the_mac_is_the_published_one();
	for (int i = 0; i < (int)(sizeof(frames) / sizeof(frames[0])); i++)
		everything_is_bound(i);
	no_two_proofs_are_alike();
	without_a_secret();
	unlink(file);
	return 0;
}
