/* SPDX-License-Identifier: MIT
 *
 * See presence.h.
 */
#include "device/presence.h"

#include <errno.h>
#include <sys/socket.h>

#include "base/socket.h"
#include "device/abstract.h"

int bnet_presence_announce(const struct bnet_device *dev)
{
	int rc = -EADDRINUSE;

	for (int i = 0; i < BNET_MAX_PRESENT && rc == -EADDRINUSE; i++)
		rc = bnet_abstract_bind("rank", dev->members[0]->ifindex, i);
	return rc;
}

int bnet_presence_count(const struct bnet_device *dev)
{
	int count = 0, fd = bnet_fd_opened(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));

	for (int i = 0; i < BNET_MAX_PRESENT && fd >= 0; i++)
		count += bnet_abstract_exists(fd, "rank", dev->members[0]->ifindex, i);
	bnet_socket_close(fd);
	return count;
}
