/* SPDX-License-Identifier: MIT
 *
 * See readiness.h.
 */
#include "transport/readiness.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/socket.h"

/* Connections with a flag. Any others are read directly. */
#define FLAGS 16384
#define EVENTS 64

static struct {
	int epoll; /* -1: none */
	int used;  /* flags from here on were never given */
	int nfree;
	uint16_t free[FLAGS]; /* flags that were given back */
	_Atomic uint32_t asked;
	_Atomic uint32_t flags[FLAGS];
} set = {.epoll = -1};

static int take_flag(void)
{
	if (set.nfree)
		return set.free[--set.nfree];
	return set.used < FLAGS ? set.used++ : -1;
}

static int add(int fd, int flag)
{
	struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP | EPOLLET, .data.u32 = (uint32_t)flag};

	return epoll_ctl(set.epoll, EPOLL_CTL_ADD, fd, &event) < 0 ? -errno : 0;
}

void bnet_readiness_join(struct bnet_ready *ready, int fd)
{
	int flag;

	if (set.epoll < 0)
		set.epoll = bnet_fd_opened(epoll_create1(EPOLL_CLOEXEC));
	if (set.epoll < 0)
		return;
	flag = take_flag();
	if (flag < 0)
		return;
	/* What has come before is an event as well. */
	atomic_store(&set.flags[flag], 0);
	if (add(fd, flag) < 0) {
		set.free[set.nfree++] = (uint16_t)flag;
		return;
	}
	ready->flag = flag + 1;
	ready->asked = atomic_load(&set.asked);
}

int bnet_readiness_add(const struct bnet_ready *ready, int fd)
{
	return add(fd, ready->flag - 1);
}

void bnet_readiness_leave(struct bnet_ready *ready, const int fds[2])
{
	for (int i = 0; i < 2; i++)
		if (fds[i] >= 0)
			epoll_ctl(set.epoll, EPOLL_CTL_DEL, fds[i], NULL);
	set.free[set.nfree++] = (uint16_t)(ready->flag - 1);
	ready->flag = 0;
}

void bnet_readiness_ask(void)
{
	struct epoll_event events[EVENTS];
	int n;

	if (set.epoll < 0)
		return;
	atomic_fetch_add_explicit(&set.asked, 1, memory_order_relaxed);
	do {
		n = epoll_wait(set.epoll, events, EVENTS, 0);
		for (int i = 0; i < n; i++)
			atomic_fetch_or_explicit(&set.flags[events[i].data.u32], events[i].events,
						 memory_order_release);
	} while (n == EVENTS);
}

/* The kernel is asked by whoever has seen the last answer already: once a round, whoever begins it. */
uint32_t bnet_readiness_take(struct bnet_ready *ready, bool *asked)
{
	_Atomic uint32_t *flag = &set.flags[ready->flag - 1];
	uint32_t answer = atomic_load_explicit(&set.asked, memory_order_relaxed);

	*asked = !atomic_load_explicit(flag, memory_order_relaxed) && ready->asked == answer;
	if (*asked) {
		bnet_readiness_ask();
		answer = atomic_load_explicit(&set.asked, memory_order_relaxed);
	}
	ready->asked = answer;
	return atomic_load_explicit(flag, memory_order_relaxed)
		       ? atomic_exchange_explicit(flag, 0, memory_order_acquire)
		       : 0;
}

void bnet_readiness_end(void)
{
	bnet_socket_close(set.epoll);
	set.epoll = -1;
}

void bnet_readiness_forget(void)
{
	if (set.epoll >= 0)
		close(set.epoll);
	set.epoll = -1;
	set.used = set.nfree = 0;
}
