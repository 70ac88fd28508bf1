/* SPDX-License-Identifier: MIT
 *
 * Processor time of a stretch of work. getrusage counts all threads of the process, including ended ones. The kernel
 * charges soft interrupts to the process that they interrupt, so the machine's count of them (/proc/stat, in ticks) is
 * read as well. No allocation. Called from the driving thread.
 */
#include "traffic.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/resource.h>
#include <unistd.h>

static double seconds(struct timeval time)
{
	return (double)time.tv_sec + (double)time.tv_usec * 1e-6;
}

/* The first line of /proc/stat: cpu user nice system idle iowait irq softirq ... 0 if it cannot be read. */
static double softirq_seconds(void)
{
	char line[256] = "";
	double ticks = 0;
	ssize_t got = -1;
	int fd = open("/proc/stat", O_RDONLY | O_CLOEXEC);

	if (fd >= 0) {
		got = read(fd, line, sizeof(line) - 1);
		close(fd);
	}
	if (got <= 0 || sscanf(line, "cpu %*s %*s %*s %*s %*s %*s %lf", &ticks) != 1)
		return 0;
	return ticks / (double)sysconf(_SC_CLK_TCK);
}

struct traffic_usage traffic_usage_now(void)
{
	struct rusage process, driver;

	getrusage(RUSAGE_SELF, &process);
	getrusage(RUSAGE_THREAD, &driver);
	return (struct traffic_usage){
		.user = seconds(process.ru_utime),
		.system = seconds(process.ru_stime),
		.driver_user = seconds(driver.ru_utime),
		.driver_system = seconds(driver.ru_stime),
		.softirq = softirq_seconds(),
		.switches = (double)(process.ru_nvcsw - driver.ru_nvcsw),
	};
}

struct traffic_usage traffic_usage_since(const struct traffic_usage *before)
{
	struct traffic_usage now = traffic_usage_now();

	now.user -= before->user;
	now.system -= before->system;
	now.driver_user -= before->driver_user;
	now.driver_system -= before->driver_system;
	now.softirq -= before->softirq;
	now.switches -= before->switches;
	return now;
}

void traffic_idle(double window_s, struct traffic_window *out)
{
	struct timespec pause = {.tv_sec = (time_t)window_s};
	struct traffic_usage before = traffic_usage_now();
	double opened = traffic_now();

	pause.tv_nsec = (long)((window_s - (double)pause.tv_sec) * 1e9);
	nanosleep(&pause, NULL);
	*out = (struct traffic_window){.seconds = traffic_now() - opened, .used = traffic_usage_since(&before)};
}
