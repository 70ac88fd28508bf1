/* SPDX-License-Identifier: MIT
 *
 * Sealed frames: what was altered, repeated, left out, moved, or comes from another stream does not verify, with either
 * cipher or a checksum, also behind a change of keys. The ciphers and the derivation of keys are those of their RFCs.
 */
#include "transport/seal.h"

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
#define LARGEST (BNET_WIRE_FRAME_HEADER + BNET_SEAL_BODY_MAX)

static char file[] = "/tmp/bnet-seal-XXXXXX";
static uint8_t payload[BNET_SEAL_SLICE];

/* ---- published values ---- */

static void hkdf_is_the_published_one(void)
{
	static const uint8_t expected[] = {0x3c, 0xb2, 0x5f, 0x25, 0xfa, 0xac, 0xd5, 0x7a, 0x90, 0x43, 0x4f,
					   0x64, 0xd0, 0x36, 0x2f, 0x2a, 0x2d, 0x2d, 0x0a, 0x90, 0xcf, 0x1a,
					   0x5a, 0x4c, 0x5d, 0xb0, 0x2d, 0x56, 0xec, 0xc4, 0xc5, 0xbf, 0x34,
					   0x00, 0x72, 0x08, 0xd5, 0xb8, 0x87, 0x18, 0x58, 0x65};
	uint8_t key[22], salt[13], info[10], out[sizeof(expected)];

	memset(key, 0x0b, sizeof(key));
	for (size_t i = 0; i < sizeof(salt); i++)
		salt[i] = (uint8_t)i;
	for (size_t i = 0; i < sizeof(info); i++)
		info[i] = (uint8_t)(0xf0 + i);
	check_int(bnet_crypto_hkdf((struct bnet_crypto_bytes){key, sizeof(key)},
				   (struct bnet_crypto_bytes){salt, sizeof(salt)},
				   (struct bnet_crypto_bytes){info, sizeof(info)}, out, sizeof(out)),
		  0);
	check(memcmp(out, expected, sizeof(out)) == 0); /* RFC 5869, A.1 */
}

/* The tag of nothing, under a key and a nonce of zeroes: test case 1 of GCM's specification, and RFC 8439's
 * construction by another implementation. */
static void the_ciphers_are_the_published_ones(void)
{
	static const uint8_t gcm[] = {0x58, 0xe2, 0xfc, 0xce, 0xfa, 0x7e, 0x30, 0x61,
				      0x36, 0x7f, 0x1d, 0x57, 0xa4, 0xe7, 0x45, 0x5a};
	static const uint8_t chacha[] = {0x4e, 0xb9, 0x72, 0xc9, 0xa8, 0xfb, 0x3a, 0x1b,
					 0x38, 0x2b, 0xb4, 0xd3, 0x6f, 0x5f, 0xfa, 0xd1};
	static const uint8_t zeroes[BNET_CIPHER_KEY_MAX];
	const struct bnet_crypto_bytes nothing = {zeroes, 0};

	for (int kind = 0; kind < 2; kind++) {
		struct bnet_cipher *cipher = bnet_cipher_new((enum bnet_cipher_kind)kind, true);
		uint8_t tag[BNET_CIPHER_TAG];

		check(cipher);
		check_int(bnet_cipher_set_key(cipher, zeroes), 0);
		check_int(bnet_cipher_seal(cipher, zeroes, nothing, nothing, nothing, tag), 0);
		check(memcmp(tag, kind == BNET_CIPHER_AES_128_GCM ? gcm : chacha, sizeof(tag)) == 0);
		bnet_cipher_free(cipher);
	}
}

/* ---- two ends ---- */

static struct bnet_seal_origin origin(enum bnet_seal_kind kind)
{
	struct bnet_seal_origin from = {.kind = kind, .connection = 42, .serial = 3};

	memset(from.token, 7, sizeof(from.token));
	memset(from.hello, 8, sizeof(from.hello));
	memset(from.challenge, 9, sizeof(from.challenge));
	return from;
}

struct ends {
	struct bnet_seal *sender, *receiver;
};

static struct ends open_ends(enum bnet_seal_kind kind)
{
	const struct bnet_seal_origin from = origin(kind);
	struct ends ends = {bnet_seal_new(&from, true), bnet_seal_new(&from, false)};

	check(ends.sender && ends.receiver);
	return ends;
}

static void close_ends(struct ends ends)
{
	bnet_seal_free(ends.sender);
	bnet_seal_free(ends.receiver);
}

static size_t head(uint8_t out[BNET_WIRE_DATA_HEADER], uint64_t message, uint32_t size)
{
	const struct bnet_wire_data data = {.message = message, .size = size, .length = size};

	bnet_wire_data_encode(out, &data);
	return BNET_WIRE_DATA_HEADER;
}

/* Copies the sealed frame, as it would be written, and returns its size. */
static size_t sealed(struct bnet_seal *seal, uint64_t message, uint32_t size, uint8_t *out)
{
	uint8_t bytes[BNET_WIRE_DATA_HEADER];
	const uint8_t *from;
	size_t length, left;

	check_int(bnet_seal_frame(seal, bytes, head(bytes, message, size), payload, size), 0);
	from = bnet_seal_left(seal, &length);
	memcpy(out, from, length);
	bnet_seal_written(seal, length);
	bnet_seal_left(seal, &left);
	check_int(left, 0);
	return length;
}

/* The frame of a plain stream; or -errno. */
static int opened(struct bnet_seal *seal, const uint8_t *wire, size_t size, const uint8_t **frame, size_t *length)
{
	uint8_t *to;
	int rc = bnet_seal_collect(seal, wire, &to);

	if (rc < 0)
		return rc;
	memcpy(to, wire + BNET_WIRE_FRAME_HEADER, size - BNET_WIRE_FRAME_HEADER);
	return bnet_seal_open(seal, frame, length);
}

static void passes(struct ends ends, enum bnet_seal_kind kind, uint64_t message, uint32_t size)
{
	static uint8_t wire[LARGEST];
	const size_t on_wire = sealed(ends.sender, message, size, wire);
	uint8_t plain[BNET_WIRE_DATA_HEADER];
	const uint8_t *frame;
	size_t length;

	if (size >= 16)
		check_int(!memmem(wire, on_wire, payload, size < 64 ? size : 64), kind != BNET_SEAL_CHECKSUM);
	check_int(opened(ends.receiver, wire, on_wire, &frame, &length), 0);
	check_int(length, head(plain, message, size) + size);
	check_int(memcmp(frame, plain, sizeof(plain)), 0);
	check_int(memcmp(frame + BNET_WIRE_DATA_HEADER, payload, size), 0);
}

static void frames_arrive_as_they_are(enum bnet_seal_kind kind)
{
	const uint32_t sizes[] = {0, 1, 15, 16, 100, 4096, 65536, BNET_SEAL_SLICE};
	struct ends ends = open_ends(kind);

	for (uint64_t message = 0; message < 200; message++)
		passes(ends, kind, message, sizes[message % (sizeof(sizes) / sizeof(sizes[0]))]);
	close_ends(ends);
}

static void fails(enum bnet_seal_kind kind, const uint8_t *wire, size_t size)
{
	const struct bnet_seal_origin from = origin(kind);
	struct bnet_seal *receiver = bnet_seal_new(&from, false);
	const uint8_t *frame;
	size_t length;

	check_int(opened(receiver, wire, size, &frame, &length), -EBADMSG);
	bnet_seal_free(receiver);
}

static void each_bit_is_verified(enum bnet_seal_kind kind)
{
	struct ends ends = open_ends(kind);
	uint8_t wire[256];
	const size_t size = sealed(ends.sender, 5, 100, wire);

	for (size_t at = 0; at < size; at++) {
		if (at >= 4 && at < BNET_WIRE_FRAME_HEADER)
			continue; /* the length: another number of bytes would be collected */
		for (int bit = 0; bit < 8; bit++) {
			wire[at] ^= (uint8_t)(1 << bit);
			fails(kind, wire, size);
			wire[at] ^= (uint8_t)(1 << bit);
		}
	}
	close_ends(ends);
}

static void lengths_are_bounded(enum bnet_seal_kind kind)
{
	struct ends ends = open_ends(kind);
	uint8_t header[BNET_WIRE_FRAME_HEADER], *to;
	const uint32_t bad[] = {0, BNET_SEAL_CHECKSUM_SIZE - 1, BNET_SEAL_BODY_MAX + 1, UINT32_MAX};

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		const struct bnet_wire_frame frame = {.type = BNET_WIRE_FRAME_DATA, .length = bad[i]};

		bnet_wire_frame_encode(header, &frame);
		check_int(bnet_seal_collect(ends.receiver, header, &to), -EBADMSG);
	}
	close_ends(ends);
}

static void order_is_verified(enum bnet_seal_kind kind)
{
	struct ends ends = open_ends(kind);
	uint8_t first[256], second[256];
	const size_t size = sealed(ends.sender, 0, 100, first);
	const uint8_t *frame;
	size_t length;

	sealed(ends.sender, 0, 100, second);
	check(memcmp(first, second, size) != 0); /* the same message is not the same bytes */
	fails(kind, second, size);               /* the first one is left out, or comes later */
	check_int(opened(ends.receiver, first, size, &frame, &length), 0);
	check_int(opened(ends.receiver, first, size, &frame, &length), -EBADMSG); /* once more */
	close_ends(ends);
}

/* Whatever is different in what the keys come from. */
static void other_streams_are_told_apart(enum bnet_seal_kind kind)
{
	struct bnet_seal_origin others[5];
	struct ends ends = open_ends(kind);
	uint8_t wire[256];
	const size_t size = sealed(ends.sender, 0, 100, wire);

	for (int i = 0; i < 5; i++)
		others[i] = origin(kind);
	others[0].connection++;
	others[1].serial++;
	others[2].token[15] ^= 1;
	others[3].hello[BNET_PROOF_NONCE - 1] ^= 1;
	others[4].challenge[0] ^= 1;
	for (int i = 0; i < 5; i++) {
		struct bnet_seal *receiver = bnet_seal_new(&others[i], false);
		const uint8_t *frame;
		size_t length;

		check_int(opened(receiver, wire, size, &frame, &length), -EBADMSG);
		bnet_seal_free(receiver);
	}
	close_ends(ends);
}

/* Both ends go on to the next key at the same frame. */
static void keys_change(enum bnet_seal_kind kind)
{
	struct ends ends = open_ends(kind);

	for (uint64_t i = 0; i < BNET_SEAL_REKEY + 10; i++)
		passes(ends, kind, i, 1);
	close_ends(ends);
}

int main(void)
{
	char line[BNET_SECRET_LINE];
	int fd = mkostemp(file, O_CLOEXEC);

	for (size_t i = 0; i < sizeof(payload); i++)
		payload[i] = (uint8_t)(i * 31 + i / 251);
	check_int(write(fd, "the secret of this test", 23), 23);
	close(fd);
	if (bnet_secret_load(file, line, sizeof(line)) == -ELIBACC) {
		fprintf(stderr, "skipped: %s\n", line);
		unlink(file);
		return SKIPPED;
	}
	hkdf_is_the_published_one();
	the_ciphers_are_the_published_ones();
	for (enum bnet_seal_kind kind = BNET_SEAL_AES_128_GCM; kind <= BNET_SEAL_CHECKSUM; kind++) {
		frames_arrive_as_they_are(kind);
		each_bit_is_verified(kind);
		lengths_are_bounded(kind);
		if (kind == BNET_SEAL_CHECKSUM)
			continue;
		order_is_verified(kind);
		other_streams_are_told_apart(kind);
		if (!is_brief())
			keys_change(kind);
	}
	unlink(file);
	return 0;
}
