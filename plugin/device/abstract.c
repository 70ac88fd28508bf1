/* SPDX-License-Identifier: MIT
 *
 * See abstract.h.
 */
#include "device/abstract.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "base/socket.h"

/* An abstract name begins with a zero byte and has no end but its length. */
static socklen_t name_it(struct sockaddr_un *name, const char *subject, int ifindex, int number)
{
	int size;

	*name = (struct sockaddr_un){.sun_family = AF_UNIX};
	size = snprintf(name->sun_path + 1, sizeof(name->sun_path) - 1, "bagua-net/%s/%d/%d", subject, ifindex, number);
	return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)size);
}

int bnet_abstract_bind(const char *subject, int ifindex, int number)
{
	struct sockaddr_un name;
	socklen_t size = name_it(&name, subject, ifindex, number);
	int fd = bnet_fd_opened(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0)), rc;

	if (fd < 0 || bind(fd, (struct sockaddr *)&name, size) == 0)
		return fd;
	rc = -errno;
	bnet_socket_close(fd);
	return rc;
}

bool bnet_abstract_exists(int fd, const char *subject, int ifindex, int number)
{
	struct sockaddr_un name;
	socklen_t size = name_it(&name, subject, ifindex, number);

	return connect(fd, (struct sockaddr *)&name, size) == 0;
}
