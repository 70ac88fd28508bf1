/* SPDX-License-Identifier: MIT
 *
 * The data that two plugins exchange: the handle that NCCL carries out of band, and the frames on a stream. Pure
 * functions over bytes: no state, no system call, any thread. Every decoder accepts any input of any length. Fields are
 * little-endian and of fixed width.
 *
 * A stream opens with HELLO from the connector and WELCOME from the listener; with a secret, CHALLENGE from the
 * listener and CONFIRM from the connector come between them. Then DATA frames flow from the sender. A socket of its own
 * carries a QUESTION and its ANSWER, and nothing else. The opposite direction of a stream carries nothing. A frame of
 * an unknown type is skipped by its length.
 */
#ifndef BNET_WIRE_H
#define BNET_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#define BNET_WIRE_VERSION 1
#define BNET_TOKEN_SIZE 16
#define BNET_PROOF_MAX 64
/* A proof of identity (handshake/proof.h): a random number of the frame's sender, then a MAC. */
#define BNET_PROOF_NONCE 16
#define BNET_PROOF_SIZE (BNET_PROOF_NONCE + 32)
/* Messages are cut at multiples of this. NCCL's GPU kernels poll flags inside 16-byte (LL) and 128-byte (LL128) lines
 * of a receive buffer while it is written; a line that arrives in two pieces corrupts data silently. */
#define BNET_UNIT 4096

static inline uint64_t bnet_units(uint64_t bytes)
{
	return (bytes + BNET_UNIT - 1) / BNET_UNIT;
}

enum bnet_wire_frame_type {
	BNET_WIRE_FRAME_HELLO = 1,
	BNET_WIRE_FRAME_WELCOME = 2,
	BNET_WIRE_FRAME_DATA = 3,
	BNET_WIRE_FRAME_QUESTION = 7,
	BNET_WIRE_FRAME_ANSWER = 8,
	BNET_WIRE_FRAME_CLOSE = 9, /* the sender closes, and nothing was outstanding; has no body */
	BNET_WIRE_FRAME_CHALLENGE = 11,
	BNET_WIRE_FRAME_CONFIRM = 12,
	BNET_WIRE_FRAME_FAILED = 10, /* the sender gives the connection up, and resets its streams next; has no body */
};

/* This end takes part in the repair of a stream: a sender keeps what has not been acknowledged, a receiver says how far
 * it has got. */
#define BNET_WIRE_FEATURE_REPAIR 2u
/* This end has a secret (BAGUA_NET_SECRET_FILE). Both have, or the other one is refused. */
#define BNET_WIRE_FEATURE_SECRET 4u
/* This end encrypts (BAGUA_NET_ENCRYPT). Both do, or the other one is refused. */
#define BNET_WIRE_FEATURE_ENCRYPT 8u
/* … and has instructions for AES. Where both have, it is AES-128-GCM; else ChaCha20-Poly1305. */
#define BNET_WIRE_FEATURE_AES 16u
/* This end wants checksums (BAGUA_NET_CHECKSUM), and does not encrypt. Both do, or the other one is refused. */
#define BNET_WIRE_FEATURE_CHECKSUM 32u

enum bnet_wire_verdict {
	BNET_WIRE_VERDICT_OK = 0,
	BNET_WIRE_VERDICT_VERSION = 1, /* the wire versions differ */
	BNET_WIRE_VERDICT_TOKEN = 2,   /* no listener has this token, or no longer */
	BNET_WIRE_VERDICT_GONE = 3,    /* the stream's connection does not exist, or no longer */
	BNET_WIRE_VERDICT_LIMIT = 4,   /* no room for another stream or connection */
	BNET_WIRE_VERDICT_SECRET =
		5,                  /* HELLO does not prove that its sender knows this end's secret, or has one more */
	BNET_WIRE_VERDICT_SEAL = 6, /* one end encrypts, or wants checksums, and the other does not */
};

#define BNET_WIRE_FRAME_HEADER 8
struct bnet_wire_frame {
	uint8_t type;
	uint8_t flags;
	uint32_t length; /* bytes after the frame header */
};

/* A handle has 64 bytes. Its first two are not a valid address family, so that a peer on NCCL's own Socket transport,
 * which reads one there, reports an error instead of waiting. */
#define BNET_WIRE_HANDLE_SIZE 64
struct bnet_wire_handle {
	uint8_t version;
	struct sockaddr_storage addr; /* AF_INET or AF_INET6, with the port; no scope id, which is local to a host */
	uint8_t token[BNET_TOKEN_SIZE];
	uint64_t attempt; /* set by the connector between two calls of connect; 0 from listen */
};

/* The maximum size of HELLO and WELCOME frames. A later version's may be longer than this version's; its first fields
 * must be read to report that version. */
#define BNET_WIRE_HANDSHAKE_MAX 512
#define BNET_WIRE_HELLO_MAX (BNET_WIRE_FRAME_HEADER + 64 + BNET_PROOF_MAX + 8)
struct bnet_wire_hello {
	uint16_t version;
	uint16_t stream;     /* 0: opens the connection */
	uint64_t connection; /* random, chosen by the connector */
	uint8_t token[BNET_TOKEN_SIZE];
	uint32_t features;
	struct sockaddr_storage listener; /* where the connector itself listens; AF_UNSPEC: nowhere */
	uint8_t proof_size;
	uint8_t proof[BNET_PROOF_MAX];
	/* They follow the proof, so that an older reader skips them. */
	uint32_t serial;  /* of the stream, unlike `stream` never used again on this connection; 0: an older sender's */
	uint32_t repairs; /* the serial of the stream that this one takes the place of; 0: of none */
};

/* The addresses of a listener with several interfaces; the handle has room for only one. They follow the proof, so that
 * an older reader skips them. */
#define BNET_ADDRESSES 16
#define BNET_ADDRESS_SIZE 20
#define BNET_WIRE_WELCOME_MAX \
	(BNET_WIRE_FRAME_HEADER + 24 + BNET_PROOF_MAX + 4 + BNET_ADDRESSES * BNET_ADDRESS_SIZE + 8)
struct bnet_wire_welcome {
	uint16_t version;
	uint16_t verdict;     /* enum bnet_wire_verdict */
	uint16_t max_streams; /* the listener's own BAGUA_NET_NSTREAMS */
	uint8_t keepalive;    /* … and its BAGUA_NET_KEEPALIVE; 0: its kernel sends no probes, or it does not say */
	uint64_t connection;
	uint32_t features;
	uint8_t proof_size;
	uint8_t proof[BNET_PROOF_MAX];
	uint8_t naddresses; /* 0: the handle has the only address, or this WELCOME does not list them */
	struct sockaddr_storage addresses[BNET_ADDRESSES];
	/* To a stream that repairs another one: so many bytes of that one, counted from the end of its handshake, are
	 * or will be received. They follow the addresses. */
	bool repaired;
	uint64_t position;
};

/* One end of an existing connection asks the other's host. Its sender: how much has the receiver's device received? Its
 * receiver: is the sender still there? */
#define BNET_WIRE_QUESTION_SIZE (BNET_WIRE_FRAME_HEADER + 40)
#define BNET_WIRE_QUESTION_MAX (BNET_WIRE_QUESTION_SIZE + BNET_PROOF_SIZE)
struct bnet_wire_question {
	uint16_t version;
	bool by_receiver;
	uint64_t connection;
	uint8_t token[BNET_TOKEN_SIZE];
	uint32_t rtt_us;    /* the path's smallest; 0: not known */
	uint8_t proof_size; /* 0 or BNET_PROOF_SIZE; it follows the rest, so that an older reader skips it */
	uint8_t proof[BNET_PROOF_SIZE];
};

#define BNET_WIRE_ANSWER_SIZE (BNET_WIRE_FRAME_HEADER + 32)
#define BNET_WIRE_ANSWER_MAX (BNET_WIRE_ANSWER_SIZE + BNET_PROOF_SIZE)
struct bnet_wire_answer {
	uint16_t version;
	uint16_t verdict;    /* OK or GONE; the rest is valid with OK */
	uint64_t connection; /* as asked */
	uint64_t moved_us;   /* for how long the connection's bytes were seen to arrive, after questions about it */
	uint64_t received;   /* bytes that all interfaces of the device have received in that time */
	uint8_t proof_size;  /* as of a question */
	uint8_t proof[BNET_PROOF_SIZE];
};

/* CHALLENGE and CONFIRM are a proof and nothing else. */
#define BNET_WIRE_PROOF_SIZE (BNET_WIRE_FRAME_HEADER + BNET_PROOF_SIZE)

/* Where the proof of an encoded frame begins. */
#define BNET_WIRE_HELLO_PROOF (BNET_WIRE_FRAME_HEADER + 64)
#define BNET_WIRE_WELCOME_PROOF (BNET_WIRE_FRAME_HEADER + 24)
#define BNET_WIRE_QUESTION_PROOF BNET_WIRE_QUESTION_SIZE
#define BNET_WIRE_ANSWER_PROOF BNET_WIRE_ANSWER_SIZE
#define BNET_WIRE_PROOF_PROOF BNET_WIRE_FRAME_HEADER

#define BNET_WIRE_DATA_HEADER 32
struct bnet_wire_data {
	uint64_t message; /* 0, 1, 2 … in the order of isend */
	uint64_t size;    /* of the whole message */
	uint64_t offset;  /* of this slice: a multiple of BNET_UNIT */
	uint32_t length;  /* of this slice: a multiple of BNET_UNIT unless it ends the message; 0 for an empty one */
};

/* Encoders return the bytes written, if anything. Decoders return 0, -EBADMSG for bytes that no plugin sends, or
 * -EAFNOSUPPORT where documented. */
void bnet_wire_frame_encode(uint8_t out[BNET_WIRE_FRAME_HEADER], const struct bnet_wire_frame *frame);
void bnet_wire_frame_decode(const uint8_t in[BNET_WIRE_FRAME_HEADER], struct bnet_wire_frame *frame);

/* Bytes of a frame of which this much is there: of its header, or of all. */
uint32_t bnet_wire_frame_wants(const uint8_t *bytes, uint32_t there);

void bnet_wire_handle_encode(uint8_t out[BNET_WIRE_HANDLE_SIZE], const struct bnet_wire_handle *handle);
/* -EAFNOSUPPORT: by its first bytes, the handle of another network. */
int bnet_wire_handle_decode(const uint8_t in[BNET_WIRE_HANDLE_SIZE], struct bnet_wire_handle *handle);
void bnet_wire_handle_set_attempt(uint8_t handle[BNET_WIRE_HANDLE_SIZE], uint64_t attempt);

/* The whole frame, header included. */
size_t bnet_wire_hello_encode(uint8_t out[BNET_WIRE_HELLO_MAX], const struct bnet_wire_hello *hello);
size_t bnet_wire_welcome_encode(uint8_t out[BNET_WIRE_WELCOME_MAX], const struct bnet_wire_welcome *welcome);
/* The frame's body, without its header. Fields that a later version appends are ignored. */
int bnet_wire_hello_decode(const uint8_t *body, size_t size, struct bnet_wire_hello *hello);
int bnet_wire_welcome_decode(const uint8_t *body, size_t size, struct bnet_wire_welcome *welcome);
/* Does the header announce this frame with a valid length? Decided after eight bytes, before anything is stored. */
bool bnet_wire_frame_is_hello(const struct bnet_wire_frame *frame);
bool bnet_wire_frame_is_welcome(const struct bnet_wire_frame *frame);

size_t bnet_wire_question_encode(uint8_t out[BNET_WIRE_QUESTION_MAX], const struct bnet_wire_question *question);
size_t bnet_wire_answer_encode(uint8_t out[BNET_WIRE_ANSWER_MAX], const struct bnet_wire_answer *answer);
int bnet_wire_question_decode(const uint8_t *body, size_t size, struct bnet_wire_question *question);
int bnet_wire_answer_decode(const uint8_t *body, size_t size, struct bnet_wire_answer *answer);
bool bnet_wire_frame_is_question(const struct bnet_wire_frame *frame);
bool bnet_wire_frame_is_answer(const struct bnet_wire_frame *frame);

/* type: CHALLENGE or CONFIRM. A later version's may be longer, up to BNET_WIRE_HANDSHAKE_MAX. */
size_t bnet_wire_proof_encode(uint8_t out[BNET_WIRE_PROOF_SIZE], enum bnet_wire_frame_type type,
			      const uint8_t proof[BNET_PROOF_SIZE]);
bool bnet_wire_frame_is_challenge(const struct bnet_wire_frame *frame);
bool bnet_wire_frame_is_confirm(const struct bnet_wire_frame *frame);

void bnet_wire_data_encode(uint8_t out[BNET_WIRE_DATA_HEADER], const struct bnet_wire_data *data);
/* in: the frame header and the DATA header. -EBADMSG also for a slice outside its message or not cut at a multiple of
 * BNET_UNIT. */
int bnet_wire_data_decode(const uint8_t in[BNET_WIRE_DATA_HEADER], struct bnet_wire_data *data);

#endif
