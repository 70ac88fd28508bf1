/* SPDX-License-Identifier: MIT
 *
 * How one rank of a host hands the memory over to another one, and how many and who may have it. All are this process.
 */
#include <errno.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "check.h"
#include "shared/fd_passing.h"

#define DEADLINE_S 60
#define OTHER_USER 12345

/* ---- interposed: a signal ends the wait ---- */

static int signals;

int poll(struct pollfd *waits, nfds_t count, int timeout_ms)
{
	const struct timespec limit = {.tv_sec = timeout_ms / 1000, .tv_nsec = timeout_ms % 1000 * 1000000L};

	if (signals > 0) {
		signals--;
		errno = EINTR;
		return -1;
	}
	return (int)syscall(SYS_ppoll, waits, count, &limit, NULL, 0);
}

/* ---- bodies ---- */

static void hand_over(void)
{
	struct bnet_segment made, got = BNET_SEGMENT_NONE;
	struct bnet_fd_passing first, second;

	bnet_fd_passing_open(&first);
	bnet_fd_passing_open(&second);
	check_int(bnet_segment_create(&made, 2), 0);
	check_int(bnet_fd_passing_receive(&second, &first.info, 2, 1, &got), -EAGAIN); /* it has asked */
	check_int(bnet_fd_passing_send(&first, &made), 0);
	check_int(bnet_fd_passing_receive(&second, &first.info, 2, 1, &got), 0);
	bnet_fd_passing_close(&first);
	bnet_fd_passing_close(&second);
	bnet_segment_leave(&made, "");
	bnet_segment_leave(&got, "");
}

static void hand_over_under_signals(void)
{
	signals = 3;
	hand_over();
	check_int(signals, 0);
}

/* ---- strangers of this host ---- */

/* Asks for the memory as that user, with the secret. */
static int ask_as(uid_t user, const struct bnet_peer_info *first)
{
	struct sockaddr_un name = {.sun_family = AF_UNIX};
	const socklen_t size = offsetof(struct sockaddr_un, sun_path) + BNET_SHARED_NAME;
	const uid_t own = geteuid();
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	memcpy(name.sun_path, first->name, BNET_SHARED_NAME);
	check_int(seteuid(user), 0);
	check_int(connect(fd, (struct sockaddr *)&name, size), 0);
	check_int(seteuid(own), 0);
	check_int(send(fd, first->secret, sizeof(first->secret), 0), sizeof(first->secret));
	return fd;
}

static void other_users_get_nothing(void)
{
	struct bnet_fd_passing first, second;
	struct bnet_segment made, got = BNET_SEGMENT_NONE;
	char byte;
	int fd;

	if (geteuid() != 0) {
		fprintf(stderr, "not tested, since only root can be another user: other_users_get_nothing\n");
		return;
	}
	bnet_fd_passing_open(&first);
	check_int(bnet_segment_create(&made, 2), 0);
	fd = ask_as(OTHER_USER, &first.info);
	check_int(bnet_fd_passing_send(&first, &made), -EAGAIN);
	check(recv(fd, &byte, 1, 0) <= 0);
	close(fd);
	/* Nor does anybody take another user's memory. */
	bnet_fd_passing_open(&second);
	check_int(seteuid(OTHER_USER), 0);
	check_int(bnet_fd_passing_receive(&second, &first.info, 2, 1, &got), -EACCES);
	check_int(seteuid(0), 0);
	bnet_fd_passing_close(&second);
	bnet_fd_passing_close(&first);
	bnet_segment_leave(&made, "");
}

static void who_does_not_know_the_secret_gets_nothing(void)
{
	struct bnet_segment made, got = BNET_SEGMENT_NONE;
	struct bnet_fd_passing first, stranger, second;
	struct bnet_peer_info guessed;

	bnet_fd_passing_open(&first);
	bnet_fd_passing_open(&stranger);
	bnet_fd_passing_open(&second);
	guessed = first.info;
	guessed.secret[1] ^= 1;
	check_int(bnet_segment_create(&made, 2), 0);
	check_int(bnet_fd_passing_receive(&stranger, &guessed, 2, 1, &got), -EAGAIN);
	check_int(bnet_fd_passing_send(&first, &made), -EAGAIN);
	check(bnet_fd_passing_receive(&stranger, &guessed, 2, 1, &got) < 0);
	check_int(bnet_fd_passing_receive(&second, &first.info, 2, 1, &got), -EAGAIN);
	check_int(bnet_fd_passing_send(&first, &made), 0);
	check_int(bnet_fd_passing_receive(&second, &first.info, 2, 1, &got), 0);
	bnet_fd_passing_close(&first);
	bnet_fd_passing_close(&stranger);
	bnet_fd_passing_close(&second);
	bnet_segment_leave(&made, "");
	bnet_segment_leave(&got, "");
}

static void too_many_ranks(void)
{
	struct bnet_segment segment;

	check_int(bnet_segment_create(&segment, BNET_SHARED_MAX + 1), -EUSERS);
	bnet_segment_leave(&segment, ""); /* of a segment that was refused: nothing happens */
	check_int(bnet_segment_create(&segment, BNET_SHARED_MAX), 0);
	bnet_segment_leave(&segment, "");
}

int main(void)
{
	alarm(DEADLINE_S);
	hand_over();
	hand_over_under_signals();
	other_users_get_nothing();
	who_does_not_know_the_secret_gets_nothing();
	too_many_ranks();
	return 0;
}
