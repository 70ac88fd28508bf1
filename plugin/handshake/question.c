/* SPDX-License-Identifier: MIT
 *
 * See question.h.
 */
#include "handshake/question.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "common/clock.h"
#include "base/socket.h"
#include "handshake/candidate.h"
#include "handshake/proof.h"
#include "transport/estimator.h"
#include "wire/wire.h"

/* An answer that takes longer comes too late for the window that it is about. */
#define WAIT_MS 250
#define WAIT_RTTS 10
/* … and that a receiver waits for: a SYN is sent again after 1 s, and the sender's control thread may be late. */
#define SENDER_WAIT_MS 5000

struct pending {
	struct bnet_watch watch;
	struct bnet_path *path; /* that asks, or */
	struct bnet_conn *conn; /* a receiver that does */
	struct bnet_wire_question wire;
	bool asked;
	uint32_t rtt_us;                /* of the handshake */
	uint8_t proof[BNET_PROOF_SIZE]; /* of the question; with a secret */
	uint32_t got;
	uint8_t bytes[BNET_WIRE_ANSWER_MAX];
};

/* The peer has a secret as well, or the connection would not be. */
static size_t answer_size(void)
{
	return BNET_WIRE_ANSWER_SIZE + bnet_proof_size();
}

static void end(struct pending *pending)
{
	bnet_list_remove(&pending->watch.node);
	bnet_watch_close(&pending->watch);
	free(pending);
}

static int dial(const struct bnet_conn *conn, int attempt)
{
	struct bnet_candidate pair = bnet_candidate_of(conn, 0, attempt);
	struct sockaddr_storage target = bnet_candidate_target(&pair);
	int fd = bnet_socket_open(target.ss_family), rc;

	if (fd < 0)
		return fd;
	bnet_socket_tune(fd, conn->config, conn->setup.traffic_class);
	rc = bnet_socket_bind_source(fd, &pair.nic->addr, bnet_candidate_interface(conn, &pair));
	if (rc == 0)
		rc = bnet_socket_connect(fd, &target);
	if (rc == 0 || rc == -EINPROGRESS)
		return fd;
	bnet_socket_close(fd);
	return rc;
}

static int ask(const struct bnet_conn *conn, int attempt, uint64_t wait_ms, const struct pending *asker)
{
	struct pending *pending = calloc(1, sizeof(*pending));
	int rc;

	if (!pending)
		return -ENOMEM;
	*pending = *asker;
	pending->wire = (struct bnet_wire_question){
		.version = BNET_WIRE_VERSION,
		.by_receiver = !conn->sender,
		.connection = conn->id,
		.rtt_us = asker->wire.rtt_us,
		.proof_size = bnet_proof_size(),
	};
	memcpy(pending->wire.token, conn->token, BNET_TOKEN_SIZE);
	pending->watch.deadline_ms = bnet_now_ms() + wait_ms;
	rc = dial(conn, attempt);
	bnet_watch_init(&pending->watch, rc);
	if (rc >= 0)
		rc = bnet_watch_add(&pending->watch, BNET_WATCH_QUESTION, EPOLLOUT);
	if (rc == 0)
		bnet_list_add(&bnet_engine.questions, &pending->watch.node);
	else
		end(pending);
	return rc;
}

int bnet_question_ask(const struct bnet_conn *conn, struct bnet_path *path, uint32_t rtt_us, uint32_t min_rtt_us)
{
	const uint64_t wait_ms = (uint64_t)rtt_us * WAIT_RTTS / 1000;

	return ask(conn, 0, wait_ms > WAIT_MS ? wait_ms : WAIT_MS,
		   &(struct pending){.path = path, .wire.rtt_us = min_rtt_us});
}

int bnet_question_ask_sender(struct bnet_conn *conn, int attempt)
{
	if (conn->setup.npeers == 0)
		return -EDESTADDRREQ;
	return ask(conn, attempt, SENDER_WAIT_MS, &(struct pending){.conn = conn});
}

/* The handshake is complete. */
static int send_question(struct pending *pending)
{
	uint8_t bytes[BNET_WIRE_QUESTION_MAX];
	struct bnet_reading reading;
	size_t size;
	int rc = bnet_socket_error(pending->watch.fd);

	if (rc < 0)
		return rc;
	if (bnet_estimator_read(pending->watch.fd, &reading))
		pending->rtt_us = reading.rtt_us;
	rc = bnet_proof_draw(pending->wire.proof);
	if (rc < 0)
		return rc;
	size = bnet_wire_question_encode(bytes, &pending->wire);
	rc = bnet_proof_write(BNET_PROOF_QUESTION, bytes, size, NULL);
	if (rc < 0)
		return rc;
	memcpy(pending->proof, bytes + BNET_WIRE_QUESTION_PROOF, pending->wire.proof_size);
	/* A socket that has carried nothing takes this in one piece. */
	if (send(pending->watch.fd, bytes, size, MSG_DONTWAIT | MSG_NOSIGNAL) != (ssize_t)size)
		return -EIO;
	pending->asked = true;
	return bnet_watch_change(&pending->watch, EPOLLIN | EPOLLRDHUP);
}

/* 1: the answer is complete; 0: not yet. */
static int receive_answer(struct pending *pending)
{
	ssize_t n = recv(pending->watch.fd, pending->bytes + pending->got, answer_size() - pending->got, MSG_DONTWAIT);

	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return 0;
	if (n <= 0)
		return n < 0 ? -errno : -ECONNRESET;
	pending->got += (uint32_t)n;
	return pending->got == answer_size();
}

static struct bnet_answer nothing(const struct pending *pending, int error)
{
	return (struct bnet_answer){.path = pending->path,
				    .conn = pending->conn,
				    .error = error,
				    .rtt_us = pending->rtt_us};
}

static bool is_proven(const struct pending *pending)
{
	return !bnet_proof_size() ||
	       bnet_proof_check(BNET_PROOF_ANSWER, pending->bytes, pending->got, pending->proof) == 0;
}

/* An answer that this version does not understand says nothing. */
static struct bnet_answer understood(const struct pending *pending)
{
	struct bnet_answer answer = nothing(pending, -EPROTO);
	struct bnet_wire_answer wire;
	struct bnet_wire_frame frame;

	bnet_wire_frame_decode(pending->bytes, &frame);
	if (!bnet_wire_frame_is_answer(&frame) ||
	    bnet_wire_answer_decode(pending->bytes + BNET_WIRE_FRAME_HEADER, pending->got - BNET_WIRE_FRAME_HEADER,
				    &wire) < 0 ||
	    wire.connection != pending->wire.connection || !is_proven(pending))
		return answer;
	if (wire.verdict == BNET_WIRE_VERDICT_GONE)
		answer.error = -ENOENT;
	if (wire.verdict == BNET_WIRE_VERDICT_OK) {
		answer.error = 0;
		answer.connection = wire.connection;
		answer.moved_us = wire.moved_us;
		answer.received = wire.received;
	}
	return answer;
}

bool bnet_question_ready(struct bnet_watch *watch, struct bnet_answer *answer)
{
	struct pending *pending = (struct pending *)watch;
	int rc = pending->asked ? receive_answer(pending) : send_question(pending);

	if (rc == 0)
		return false;
	*answer = rc > 0 ? understood(pending) : nothing(pending, rc);
	end(pending);
	return true;
}

bool bnet_questions_tick(uint64_t now_ms, struct bnet_answer *answer)
{
	bnet_list_each(node, &bnet_engine.questions) {
		struct pending *pending = bnet_entry(node, struct pending, watch.node);

		if (now_ms < pending->watch.deadline_ms)
			continue;
		*answer = nothing(pending, -ETIMEDOUT);
		end(pending);
		return true;
	}
	return false;
}

void bnet_questions_cancel(const struct bnet_path *path, const struct bnet_conn *conn)
{
	bnet_list_each(node, &bnet_engine.questions) {
		struct pending *pending = bnet_entry(node, struct pending, watch.node);

		if (pending->path == path && pending->conn == conn)
			end(pending);
	}
}
