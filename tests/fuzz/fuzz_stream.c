/* SPDX-License-Identifier: MIT
 *
 * A receiver with posted receives, on two streams of arbitrary bytes. It must write only inside the posted buffers
 * (AddressSanitizer checks that), and every request must end, done or failed, once the streams end, unless both streams
 * wait for receives that are never posted.
 *
 * The first byte tells where the input is split into the two streams. To get slices past the decoder often, the byte
 * 0xd5 and the four bytes after it stand for a well-formed DATA frame: message, offset in units, length in units, size.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "transport/conn.h"
#include "transport/progress.h"
#include "transport/request.h"

#define RECEIVES 4
#define CAPACITY 20000

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct bnet_config config = {.min_chunksize = 4096, .max_chunksize = 8192};
static struct bnet_device device = {.name = "fuzz", .address = ""};

/* Expands the shorthand into out. Returns the bytes written. */
static size_t expand(const uint8_t *in, size_t size, uint8_t *out, size_t room)
{
	size_t used = 0;

	while (size && used + BNET_WIRE_DATA_HEADER + 3 * BNET_UNIT < room) {
		if (in[0] != 0xd5 || size < 5) {
			out[used++] = *in++;
			size--;
			continue;
		}
		struct bnet_wire_data d = {
			.message = in[1] % 8,
			.offset = (uint64_t)(in[2] % 6) * BNET_UNIT,
			.length = (uint32_t)(in[3] % 3) * BNET_UNIT + (in[3] & 0x80 ? in[4] : 0),
			.size = (uint64_t)in[4] * 80,
		};
		bnet_wire_data_encode(out + used, &d);
		used += BNET_WIRE_DATA_HEADER;
		memset(out + used, in[4], d.length);
		used += d.length;
		in += 5;
		size -= 5;
	}
	return used;
}

static void add_stream(struct bnet_conn *conn, const uint8_t *data, size_t size)
{
	static uint8_t bytes[1 << 17];
	int pair[2];
	size_t used = expand(data, size, bytes, sizeof(bytes)), sent = 0;

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair) < 0)
		abort();
	while (sent < used) {
		ssize_t n = send(pair[1], bytes + sent, used - sent, MSG_DONTWAIT | MSG_NOSIGNAL);

		if (n <= 0)
			break; /* the socket is full: the rest is not needed */
		sent += (size_t)n;
	}
	close(pair[1]);
	if (bnet_conn_add_stream(conn, pair[0], NULL) < 0)
		abort();
}

static bool waits(const struct bnet_conn *conn)
{
	return conn->streams[0]->in.state == BNET_INCOMING_STALLED &&
	       conn->streams[1]->in.state == BNET_INCOMING_STALLED;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct bnet_conn *conn = bnet_conn_new(false, &device, &config, false);
	struct bnet_request *requests[RECEIVES];
	char *buffers[RECEIVES];
	size_t cut;

	if (!conn)
		abort();
	cut = size ? 1 + data[0] * (size - 1) / 256 : 0;
	add_stream(conn, data + (size ? 1 : 0), cut ? cut - 1 : 0);
	add_stream(conn, data + cut, size - cut);
	for (int i = 0; i < RECEIVES; i++) {
		buffers[i] = malloc(CAPACITY); /* exact, so that an overflow is detected */
		requests[i] = bnet_request_post(conn, buffers[i], CAPACITY);
	}
	for (int i = 0; i < RECEIVES; i++) {
		uint64_t got = 0;
		int rc, tries = 0;

		while ((rc = bnet_progress_test(requests[i], &got)) == 0 && !waits(conn))
			if (++tries > 100000)
				abort(); /* hangs */
		if (rc > 0 && got > CAPACITY)
			abort();
	}
	bnet_conn_free(conn);
	for (int i = 0; i < RECEIVES; i++)
		free(buffers[i]);
	return 0;
}
