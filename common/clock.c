/* SPDX-License-Identifier: MIT
 *
 * See clock.h. Any thread.
 */
#include "common/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <time.h>
#include <unistd.h>

#include "common/kernel.h"

static uint64_t read_ns(clockid_t clock)
{
	struct timespec now;

	clock_gettime(clock, &now);
	return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

uint64_t bnet_now_ns(void)
{
	return read_ns(CLOCK_MONOTONIC);
}

uint64_t bnet_now_us(void)
{
	return bnet_now_ns() / 1000;
}

uint64_t bnet_now_ms(void)
{
	return bnet_now_ns() / 1000000;
}

uint64_t bnet_thread_us(void)
{
	return read_ns(CLOCK_THREAD_CPUTIME_ID) / 1000;
}

uint64_t bnet_wall_us(void)
{
	return read_ns(CLOCK_REALTIME) / 1000;
}

/* Where a filter forbids getrandom. */
static uint64_t read_random(void)
{
	uint64_t value = 0;
	int fd = open("/dev/urandom", O_RDONLY | O_CLOEXEC);

	if (fd < 0 || read(fd, &value, sizeof(value)) != sizeof(value))
		value = (uint64_t)(uintptr_t)&value ^ bnet_now_ns() << 20 ^ (uint64_t)getpid();
	if (fd >= 0)
		close(fd);
	return value;
}

uint64_t bnet_random(void)
{
	uint64_t value = 0;

	while (value == 0)
		if (bnet_getrandom(&value, sizeof(value)) < 0 && errno != EINTR)
			value = read_random();
	return value;
}
