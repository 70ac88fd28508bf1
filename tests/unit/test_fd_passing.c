/* SPDX-License-Identifier: MIT
 *
 * How one rank of a host hands the memory over to another one, and how many may have it. All are this process.
 */
#include <errno.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "check.h"
#include "shared/fd_passing.h"

#define DEADLINE_S 60

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
	too_many_ranks();
	return 0;
}
