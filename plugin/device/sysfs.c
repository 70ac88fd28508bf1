/* SPDX-License-Identifier: MIT
 *
 * Attributes of interfaces in /sys/class/net. Reads files and keeps no state: any thread.
 */
#include "device/sysfs.h"

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/hash.h"

#define TEXT_SIZE 64
#define MAX_DEPTH 4              /* a VLAN on a bridge on a bond on ports */
#define MAX_SPEED_MBPS 100000000 /* larger values are the kernel's "unknown" (-1), read as unsigned */

/* ---- files ---- */

/* Reads the first line without its newline; false if the file is missing, unreadable or empty. */
static bool read_line(const char *path, char *text, size_t size)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t len;

	if (fd < 0)
		return false;
	len = read(fd, text, size - 1);
	close(fd);
	if (len <= 0)
		return false;
	text[len] = '\0';
	text[strcspn(text, "\n")] = '\0';
	return text[0] != '\0';
}

static bool read_attribute(const char *root, const char *name, const char *attribute, char *text, size_t size)
{
	char path[PATH_MAX];

	snprintf(path, sizeof(path), "%s/%s/%s", root, name, attribute);
	return read_line(path, text, size);
}

bool bnet_sysfs_has(const char *root, const char *name, int ifindex)
{
	char text[TEXT_SIZE];

	return read_attribute(root, name, "ifindex", text, sizeof(text)) && strtol(text, NULL, 10) == ifindex;
}

static bool has_entry(const char *root, const char *name, const char *entry)
{
	char path[PATH_MAX];

	snprintf(path, sizeof(path), "%s/%s/%s", root, name, entry);
	return access(path, F_OK) == 0;
}

bool bnet_sysfs_is_bridge_port(const char *root, const char *name)
{
	return has_entry(root, name, "brport");
}

/* ---- speed ---- */

/* What has no device has a speed that is made up: the containers' and virtual machines' ends of a bridge, 10 Gb/s. */
#define MADE_UP -1

static int speed_at(const char *root, const char *name, int depth);

/* The member that carries all traffic of an active-backup bond; false for other interfaces. */
static bool active_member(const char *root, const char *name, char *member, size_t size)
{
	char mode[TEXT_SIZE];

	return read_attribute(root, name, "bonding/mode", mode, sizeof(mode)) &&
	       strncmp(mode, "active-backup ", strlen("active-backup ")) == 0 &&
	       read_attribute(root, name, "bonding/active_slave", member, size);
}

/* The speeds of members add up in a bond that spreads its traffic. In a bridge, a VLAN, or a bond that sends everything
 * on all members, the fastest device below counts. */
static bool adds_up(const char *root, const char *name)
{
	char mode[TEXT_SIZE];

	return read_attribute(root, name, "bonding/mode", mode, sizeof(mode)) &&
	       (strncmp(mode, "balance-", strlen("balance-")) == 0 || strncmp(mode, "802.3ad", strlen("802.3ad")) == 0);
}

/* Mb/s; 0: unknown; MADE_UP: so is what the device itself says, since it repeats one of those below. */
static int speed_below(const char *root, const char *name, int depth, bool *any)
{
	static const char prefix[] = "lower_";
	char path[PATH_MAX], member[IF_NAMESIZE + 1];
	bool sum, made_up = false;
	struct dirent *entry;
	int total = 0;
	DIR *dir;

	*any = true;
	if (depth == 0)
		return 0;
	if (active_member(root, name, member, sizeof(member)))
		return speed_at(root, member, depth - 1);
	snprintf(path, sizeof(path), "%s/%s", root, name);
	dir = opendir(path);
	if (!dir)
		return 0;
	*any = false;
	sum = adds_up(root, name);
	while ((entry = readdir(dir))) {
		int speed;

		if (strncmp(entry->d_name, prefix, strlen(prefix)) != 0)
			continue;
		*any = true;
		speed = speed_at(root, entry->d_name + strlen(prefix), depth - 1);
		made_up = made_up || speed == MADE_UP;
		if (speed <= 0)
			continue;
		if (sum && speed <= MAX_SPEED_MBPS - total)
			total += speed;
		else if (speed > total)
			total = speed;
	}
	closedir(dir);
	return total == 0 && made_up ? MADE_UP : total;
}

static int speed_at(const char *root, const char *name, int depth)
{
	char text[TEXT_SIZE];
	bool any;
	int below = speed_below(root, name, depth, &any);
	long own;

	if (below != 0)
		return below;
	if (!any && depth < MAX_DEPTH && !has_entry(root, name, "device"))
		return MADE_UP;
	if (!read_attribute(root, name, "speed", text, sizeof(text)))
		return 0;
	own = strtol(text, NULL, 10);
	return own > 0 && own <= MAX_SPEED_MBPS ? (int)own : 0;
}

int bnet_sysfs_speed(const char *root, const char *name)
{
	const int speed = speed_at(root, name, MAX_DEPTH);

	return speed == MADE_UP ? 0 : speed;
}

/* ---- PCI location ---- */

/* 0000:3b:00.1 */
static bool is_pci_address(const char *text)
{
	static const char hex[] = "0123456789abcdef";
	size_t domain = strspn(text, hex);

	if (domain < 4 || text[domain] != ':')
		return false;
	text += domain + 1;
	return strspn(text, hex) == 2 && text[2] == ':' && strspn(text + 3, hex) == 2 && text[5] == '.' &&
	       strspn(text + 6, hex) == 1 && !text[7];
}

void bnet_sysfs_pci_path(const char *root, const char *name, char *path, size_t size)
{
	char link[PATH_MAX], real[PATH_MAX];
	char *last;

	path[0] = '\0';
	snprintf(link, sizeof(link), "%s/%s/device", root, name);
	if (!realpath(link, real))
		return;
	last = strrchr(real, '/');
	/* NCCL locates only PCI devices. A virtio device is the only child of its PCI device, whose path is used. */
	if (last && strncmp(last, "/virtio", strlen("/virtio")) == 0) {
		*last = '\0';
		last = strrchr(real, '/');
	}
	if (last && is_pci_address(last + 1) && strlen(real) < size)
		strcpy(path, real);
}

int bnet_sysfs_numa_node(const char *root, const char *name)
{
	char path[PATH_MAX], text[TEXT_SIZE];

	bnet_sysfs_pci_path(root, name, path, sizeof(path) - sizeof("/numa_node"));
	if (!path[0])
		return -1;
	strcat(path, "/numa_node");
	return read_line(path, text, sizeof(text)) ? (int)strtol(text, NULL, 10) : -1;
}

uint64_t bnet_sysfs_guid(const char *root, const char *name, const char *pci_path)
{
	const char *function = strrchr(pci_path, '.');
	uint64_t guid = BNET_FNV1A_64;
	char text[TEXT_SIZE];

	/* Includes the host: another one may have the same card in the same slot. */
	if (read_line("/proc/sys/kernel/random/boot_id", text, sizeof(text)))
		guid = bnet_fnv1a_64(guid, text, strlen(text));
	if (function)
		return bnet_fnv1a_64(guid, pci_path, (size_t)(function - pci_path));
	if (read_attribute(root, name, "address", text, sizeof(text)))
		guid = bnet_fnv1a_64(guid, text, strlen(text));
	return bnet_fnv1a_64(guid, name, strlen(name));
}
