/* SPDX-License-Identifier: MIT
 *
 * See fd_passing.h.
 */
#include "shared/fd_passing.h"

#include <errno.h>
#include <poll.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/clock.h"

/* A host has fewer ranks in a group than this; those beyond it ask again. */
#define BACKLOG 256
/* How long a process that has connected may take to send the secret. */
#define SECRET_MS 1000
#define NS_PER_MS 1000000

union control {
	struct cmsghdr header;
	char bytes[CMSG_SPACE(sizeof(int))];
};

static int open_socket(void)
{
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	return fd < 0 ? -errno : fd;
}

void bnet_fd_passing_close(struct bnet_fd_passing *passing)
{
	if (passing->listener >= 0)
		close(passing->listener);
	if (passing->answer_fd >= 0)
		close(passing->answer_fd);
	passing->listener = passing->answer_fd = -1;
}

/* Bound without a name, a socket gets an abstract one from the kernel. */
static bool listen_somewhere(struct bnet_fd_passing *passing)
{
	struct sockaddr_un name = {.sun_family = AF_UNIX};
	socklen_t size = sizeof(name);

	passing->listener = open_socket();
	if (passing->listener < 0 || bind(passing->listener, (struct sockaddr *)&name, sizeof(sa_family_t)) != 0 ||
	    listen(passing->listener, BACKLOG) != 0 ||
	    getsockname(passing->listener, (struct sockaddr *)&name, &size) != 0 ||
	    size != offsetof(struct sockaddr_un, sun_path) + BNET_SHARED_NAME)
		return false;
	memcpy(passing->info.name, name.sun_path, BNET_SHARED_NAME);
	return true;
}

void bnet_fd_passing_open(struct bnet_fd_passing *passing)
{
	*passing = BNET_FD_PASSING_NONE;
	if (bnet_peer_info_fill(&passing->info) && listen_somewhere(passing))
		return;
	bnet_fd_passing_close(passing);
	passing->info.layout = 0;
}

static bool same_user(int fd)
{
	struct ucred peer;
	socklen_t size = sizeof(peer);

	return getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == geteuid();
}

/* ---- the first rank ---- */

static bool send_descriptor(int to, int fd)
{
	char byte = 0;
	struct iovec part = {.iov_base = &byte, .iov_len = 1};
	union control control = {.bytes = {0}};
	struct msghdr message = {.msg_iov = &part,
				 .msg_iovlen = 1,
				 .msg_control = control.bytes,
				 .msg_controllen = sizeof(control.bytes)};

	control.header.cmsg_level = SOL_SOCKET;
	control.header.cmsg_type = SCM_RIGHTS;
	control.header.cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(&control.header), &fd, sizeof(int));
	return sendmsg(to, &message, MSG_NOSIGNAL) == 1;
}

/* Signals of the process do not end the wait. */
static bool says_something(int fd)
{
	struct pollfd waits = {.fd = fd, .events = POLLIN};
	const uint64_t until = bnet_now_ns() + (uint64_t)SECRET_MS * NS_PER_MS;
	int ready;

	do
		ready = poll(&waits, 1, SECRET_MS);
	while (ready < 0 && errno == EINTR && bnet_now_ns() < until);
	return ready == 1;
}

/* The others send the secret right after they connect. */
static bool knows_secret(int fd, const struct bnet_peer_info *info)
{
	uint64_t said[2];

	return says_something(fd) && recv(fd, said, sizeof(said), MSG_DONTWAIT) == sizeof(said) &&
	       memcmp(said, info->secret, sizeof(said)) == 0;
}

int bnet_fd_passing_send(struct bnet_fd_passing *passing, const struct bnet_segment *segment)
{
	while (passing->sent < segment->count - 1) {
		int fd = accept4(passing->listener, NULL, NULL, SOCK_CLOEXEC);

		if (fd < 0)
			return errno == EINTR || errno == ECONNABORTED ? -EAGAIN : -errno;
		if (same_user(fd) && knows_secret(fd, &passing->info) && send_descriptor(fd, segment->fd))
			passing->sent++;
		close(fd);
	}
	return 0;
}

/* ---- the others ---- */

static int ask(struct bnet_fd_passing *passing, const struct bnet_peer_info *first)
{
	struct sockaddr_un name = {.sun_family = AF_UNIX};
	const socklen_t size = offsetof(struct sockaddr_un, sun_path) + BNET_SHARED_NAME;
	int rc;

	memcpy(name.sun_path, first->name, BNET_SHARED_NAME);
	passing->answer_fd = open_socket();
	if (passing->answer_fd < 0)
		return passing->answer_fd;
	rc = connect(passing->answer_fd, (struct sockaddr *)&name, size) == 0 ? 0 : -errno;
	if (rc == 0 && !same_user(passing->answer_fd))
		rc = -EACCES;
	if (rc == 0 && send(passing->answer_fd, first->secret, sizeof(first->secret), MSG_NOSIGNAL) < 0)
		rc = -errno;
	if (rc != 0) {
		close(passing->answer_fd);
		passing->answer_fd = -1;
	}
	return rc;
}

/* The descriptor, or -errno. -EPROTO: there was none in the answer, or the first rank has closed the connection. */
static int receive_descriptor(int from)
{
	char byte;
	struct iovec part = {.iov_base = &byte, .iov_len = 1};
	union control control;
	struct msghdr message = {.msg_iov = &part,
				 .msg_iovlen = 1,
				 .msg_control = control.bytes,
				 .msg_controllen = sizeof(control.bytes)};
	const struct cmsghdr *header;
	int fd;

	if (recvmsg(from, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC) < 0)
		return -errno;
	header = CMSG_FIRSTHDR(&message);
	if (header == NULL || header->cmsg_type != SCM_RIGHTS || header->cmsg_len != CMSG_LEN(sizeof(int)))
		return -EPROTO;
	memcpy(&fd, CMSG_DATA(header), sizeof(int));
	return fd;
}

int bnet_fd_passing_receive(struct bnet_fd_passing *passing, const struct bnet_peer_info *first, int count, int index,
			    struct bnet_segment *segment)
{
	int fd, rc = 0;

	if (passing->answer_fd < 0)
		rc = ask(passing, first);
	if (rc != 0)
		return rc;
	fd = receive_descriptor(passing->answer_fd);
	return fd < 0 ? fd : bnet_segment_attach(segment, fd, count, index);
}
