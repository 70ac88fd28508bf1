/* SPDX-License-Identifier: MIT
 *
 * See peer_info.h.
 */
#include "shared/peer_info.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/hash.h"

/* Changes with struct bnet_shared_line, the places of lines and banks, the rounds of an operation or the frames of
 * messages: processes may have loaded two builds. */
#define LAYOUT 0x62616775612d0006

/* The boot's UUID, which containers on one kernel have in common. */
static bool read_boot(char boot[40])
{
	int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
	ssize_t n;

	memset(boot, 0, 40);
	if (fd < 0)
		return false;
	n = read(fd, boot, 36);
	close(fd);
	return n == 36;
}

bool bnet_peer_info_fill(struct bnet_peer_info *info)
{
	const char *host_id = getenv("NCCL_HOSTID");
	struct stat net, pid;

	*info = (struct bnet_peer_info){.layout = 0};
	if (!read_boot(info->boot) || stat("/proc/self/ns/net", &net) != 0)
		return false;
	info->net_device = (uint64_t)net.st_dev;
	info->net_inode = (uint64_t)net.st_ino;
	info->host_id = bnet_fnv1a_64(BNET_FNV1A_64, host_id, host_id != NULL ? strlen(host_id) : 0);
	if (stat("/proc/self/ns/pid", &pid) == 0)
		info->pid_namespace = (uint64_t)pid.st_ino;
	info->user = (uint32_t)geteuid();
	info->secret[0] = bnet_random();
	info->secret[1] = bnet_random();
	info->layout = LAYOUT;
	return true;
}

bool bnet_peer_info_same_host(const struct bnet_peer_info *a, const struct bnet_peer_info *b)
{
	return a->layout == LAYOUT && b->layout == LAYOUT && a->net_device == b->net_device &&
	       a->net_inode == b->net_inode && a->host_id == b->host_id && a->user == b->user &&
	       memcmp(a->boot, b->boot, sizeof(a->boot)) == 0;
}

bool bnet_peer_info_same_pid_namespace(const struct bnet_peer_info *a, const struct bnet_peer_info *b)
{
	return a->pid_namespace != 0 && a->pid_namespace == b->pid_namespace;
}
