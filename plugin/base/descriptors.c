/* SPDX-License-Identifier: MIT
 *
 * See descriptors.h.
 */
#include "base/descriptors.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/counters.h"
#include "base/log.h"

/* The table's first size, 32 KiB: enough for a job of some hundred ranks. */
#define MIN_CAPACITY 4096

static _Atomic int highest;  /* descriptor that the library has opened */
static _Atomic int capacity; /* the size of the table that was asked for */

int bnet_fd_opened(int fd)
{
	if (fd < 0)
		return -errno;
	bnet_count(descriptors, 1);
	/* A lower value of another thread may win: the next descriptor corrects it. */
	if (fd > atomic_load_explicit(&highest, memory_order_relaxed))
		atomic_store_explicit(&highest, fd, memory_order_relaxed);
	return fd;
}

const char *bnet_shortage_remedy(int error)
{
	switch (error) {
	case -EMFILE:
		return "; raise the limit of open files (ulimit -n)";
	case -ENFILE:
		return "; raise the host's limit of open files (sysctl fs.file-max)";
	case -ENOSPC: /* of epoll_ctl */
		return "; raise the limit of sysctl fs.epoll.max_user_watches";
	case -ENOMEM:
	case -ENOBUFS:
		return "; this host, or the container, has no memory left";
	}
	return "";
}

int bnet_shortage(int error, const char *what)
{
	bnet_warn("NET/BaguaNet: no %s: %s%s", what, strerror(-error), bnet_shortage_remedy(error));
	return error;
}

uint64_t bnet_descriptor_limit(void)
{
	struct rlimit limit;

	return getrlimit(RLIMIT_NOFILE, &limit) < 0 ? UINT64_MAX : (uint64_t)limit.rlim_cur;
}

bool bnet_descriptors_left(void)
{
	return atomic_load(&bnet_counts.descriptors) < bnet_descriptor_limit() / 2;
}

/* A descriptor with that number, which lasts for a moment, makes the table so large. */
static void enlarge(int size)
{
	uint64_t limit = bnet_descriptor_limit();
	int fd = eventfd(0, EFD_CLOEXEC), last;

	if (fd < 0)
		return;
	last = fcntl(fd, F_DUPFD_CLOEXEC, (uint64_t)size < limit ? size - 1 : (int)limit - 1);
	if (last >= 0)
		close(last);
	close(fd);
}

void bnet_descriptors_reserve(void)
{
	int used = atomic_load_explicit(&highest, memory_order_relaxed);
	int now = atomic_load_explicit(&capacity, memory_order_relaxed), size = now ? now : MIN_CAPACITY;

	if (now && used < now / 2)
		return;
	while (used >= size / 2)
		size *= 2;
	if (atomic_compare_exchange_strong(&capacity, &now, size))
		enlarge(size);
}
