/* SPDX-License-Identifier: MIT
 *
 * Devices: speed and PCI location on synthetic sysfs trees (bonds and cards that no test machine has).
 */
#include "check.h"
#include "device/sysfs.h"

#include <errno.h>
#include <ftw.h>
#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static char tree[64];

/* Content NULL: a directory. Content "-> X": a link to X. */
struct node {
	const char *path, *content;
};

static void make_node(const struct node *node)
{
	char path[PATH_MAX];
	FILE *file;

	snprintf(path, sizeof(path), "%s/%s", tree, node->path);
	for (char *slash = path + strlen(tree) + 1; (slash = strchr(slash, '/')); slash++) {
		*slash = '\0';
		check(mkdir(path, 0755) == 0 || errno == EEXIST);
		*slash = '/';
	}
	if (!node->content) {
		check(mkdir(path, 0755) == 0 || errno == EEXIST);
	} else if (strncmp(node->content, "-> ", 3) == 0) {
		check_int(symlink(node->content + 3, path), 0);
	} else {
		file = fopen(path, "w");
		check(file != NULL);
		fputs(node->content, file);
		fclose(file);
	}
}

static int remove_node(const char *path, const struct stat *stat, int type, struct FTW *ftw)
{
	(void)stat, (void)type, (void)ftw;
	return remove(path);
}

static void make_tree(const struct node *nodes)
{
	strcpy(tree, "/tmp/bnet-sysfs-XXXXXX");
	check(mkdtemp(tree) != NULL);
	for (; nodes->path; nodes++)
		make_node(nodes);
}

static void remove_tree(void)
{
	check_int(nftw(tree, remove_node, 16, FTW_DEPTH | FTW_PHYS), 0);
}

/* Of two nodes. */
#define CARD(name, speed)            \
	{name "/speed", speed},      \
	{                            \
		name "/device", NULL \
	}

static const struct {
	const char *what;
	int speed;
	struct node nodes[12];
} speeds[] = {
	{"plain", 25000, {{"x/speed", "25000\n"}}},
	{"no link", 0, {{"x/speed", "-1\n"}}},
	{"no link, as old kernels write it", 0, {{"x/speed", "4294967295\n"}}},
	{"zero", 0, {{"x/speed", "0\n"}}},
	{"nonsense", 0, {{"x/speed", "fast\n"}}},
	{"empty", 0, {{"x/speed", ""}}},
	{"no such file", 0, {{"x", NULL}}},
	{"a VLAN", 100000, {{"x/lower_eth0", NULL}, CARD("eth0", "100000\n")}},
	{"a VLAN whose parent is in another namespace", 100000, {{"x/speed", "100000\n"}}},
	{"a bridge", 40000, {{"x/lower_a", NULL}, {"x/lower_b", NULL}, CARD("a", "1000\n"), CARD("b", "40000\n")}},
	{"802.3ad",
	 50000,
	 {{"x/bonding/mode", "802.3ad 4\n"},
	  {"x/lower_a", NULL},
	  {"x/lower_b", NULL},
	  CARD("a", "25000\n"),
	  CARD("b", "25000\n")}},
	{"802.3ad with a dead member",
	 25000,
	 {{"x/bonding/mode", "802.3ad 4\n"},
	  {"x/lower_a", NULL},
	  {"x/lower_b", NULL},
	  CARD("a", "25000\n"),
	  CARD("b", "-1\n")}},
	{"balance-xor",
	 11000,
	 {{"x/bonding/mode", "balance-xor 2\n"},
	  {"x/lower_a", NULL},
	  {"x/lower_b", NULL},
	  CARD("a", "10000\n"),
	  CARD("b", "1000\n")}},
	{"broadcast",
	 10000,
	 {{"x/bonding/mode", "broadcast 3\n"},
	  {"x/lower_a", NULL},
	  {"x/lower_b", NULL},
	  CARD("a", "10000\n"),
	  CARD("b", "10000\n")}},
	{"active-backup",
	 1000,
	 {{"x/bonding/mode", "active-backup 1\n"},
	  {"x/bonding/active_slave", "b\n"},
	  {"x/lower_a", NULL},
	  {"x/lower_b", NULL},
	  CARD("a", "10000\n"),
	  CARD("b", "1000\n")}},
	{"active-backup without an active one",
	 10000,
	 {{"x/bonding/mode", "active-backup 1\n"},
	  {"x/bonding/active_slave", "\n"},
	  {"x/lower_a", NULL},
	  CARD("a", "10000\n")}},
	{"a VLAN on a bond",
	 20000,
	 {{"x/lower_bond", NULL},
	  {"bond/bonding/mode", "802.3ad 4\n"},
	  {"bond/lower_a", NULL},
	  {"bond/lower_b", NULL},
	  CARD("a", "10000\n"),
	  CARD("b", "10000\n")}},
	{"nothing known below: its own attribute",
	 5000,
	 {{"x/lower_a", NULL}, {"x/speed", "5000\n"}, CARD("a", "-1\n")}},
	{"a bridge of containers", 0, {{"x/lower_veth0", NULL}, {"veth0/speed", "10000\n"}, {"x/speed", "10000\n"}}},
	{"a bridge of a card and of containers",
	 1000,
	 {{"x/lower_a", NULL}, {"x/lower_veth0", NULL}, CARD("a", "1000\n"), {"veth0/speed", "10000\n"}}},
	{"… whose card does not say",
	 0,
	 {{"x/lower_a", NULL},
	  {"x/lower_veth0", NULL},
	  CARD("a", "-1\n"),
	  {"veth0/speed", "10000\n"},
	  {"x/speed", "10000\n"}}},
	{"a VLAN on a bridge of containers",
	 0,
	 {{"x/lower_br0", NULL},
	  {"br0/lower_veth0", NULL},
	  {"br0/speed", "10000\n"},
	  {"veth0/speed", "10000\n"},
	  {"x/speed", "10000\n"}}},
	{"a VLAN on a bond that alone says",
	 2000,
	 {{"x/lower_bond", NULL}, {"bond/lower_a", NULL}, CARD("a", "-1\n"), {"bond/speed", "2000\n"}}},
	{"a circle", 0, {{"x/lower_y", NULL}, {"y/lower_x", NULL}}},
};

static void test_speeds(void)
{
	for (size_t i = 0; i < COUNT(speeds); i++) {
		int speed;

		make_tree(speeds[i].nodes);
		speed = bnet_sysfs_speed(tree, "x");
		remove_tree();
		if (speed != speeds[i].speed)
			fprintf(stderr, "%s\n", speeds[i].what);
		check_int(speed, speeds[i].speed);
	}
}

static const struct {
	const char *device, *pci; /* the target of the "device" link, and the PCI path below the tree; "": none */
} places[] = {
	{"pci0000:3a/0000:3a:00.0/0000:3b:00.1", "pci0000:3a/0000:3a:00.0/0000:3b:00.1"},
	{"pci0000:00/0000:00:03.0/virtio2", "pci0000:00/0000:00:03.0"},
	{"pci10000:00/10000:00:03.0", "pci10000:00/10000:00:03.0"},
	{"vmbus/f8615163-0000-1000-2000-6045bda4d5b0", ""},
	{"pci0000:00/0000:00:14.0/usb1/1-2/1-2:1.0", ""},
	{"pci0000:00", ""},
};

static void test_places(void)
{
	for (size_t i = 0; i < COUNT(places); i++) {
		char link[PATH_MAX], numa[PATH_MAX], expected[PATH_MAX] = "", path[256];
		struct node nodes[] = {{places[i].device, NULL}, {"x/device", link}, {numa, "1\n"}, {NULL, NULL}};

		snprintf(link, sizeof(link), "-> ../%s", places[i].device);
		snprintf(numa, sizeof(numa), "%s/numa_node", places[i].pci[0] ? places[i].pci : "elsewhere");
		make_tree(nodes);
		if (places[i].pci[0])
			snprintf(expected, sizeof(expected), "%s/%s", tree, places[i].pci);
		bnet_sysfs_pci_path(tree, "x", path, sizeof(path));
		check_str(path, expected);
		check_int(bnet_sysfs_numa_node(tree, "x"), places[i].pci[0] ? 1 : -1);
		remove_tree();
	}
}

static void test_no_place(void)
{
	static const struct node nodes[] = {{"x", NULL}, {NULL, NULL}};
	char path[256] = "something";

	make_tree(nodes);
	bnet_sysfs_pci_path(tree, "x", path, sizeof(path));
	check_str(path, "");
	check_int(bnet_sysfs_numa_node(tree, "x"), -1);
	check(!bnet_sysfs_is_bridge_port(tree, "x"));
	remove_tree();
}

static void test_guids(void)
{
	static const struct node nodes[] = {{"a/address", "02:00:00:00:00:01\n"},
					    {"b/address", "02:00:00:00:00:02\n"},
					    {NULL, NULL}};
	uint64_t port0, port1, other_card, no_card_a, no_card_b;

	make_tree(nodes);
	port0 = bnet_sysfs_guid(tree, "a", "/sys/devices/pci0000:3a/0000:3b:00.0");
	port1 = bnet_sysfs_guid(tree, "b", "/sys/devices/pci0000:3a/0000:3b:00.1");
	other_card = bnet_sysfs_guid(tree, "b", "/sys/devices/pci0000:3a/0000:3c:00.0");
	no_card_a = bnet_sysfs_guid(tree, "a", "");
	no_card_b = bnet_sysfs_guid(tree, "b", "");
	check(port0 == port1);
	check(port0 != other_card);
	check(no_card_a != no_card_b);
	check(no_card_a == bnet_sysfs_guid(tree, "a", ""));
	remove_tree();
}

static void test_namesakes(void)
{
	static const struct node nodes[] = {{"x/ifindex", "7\n"}, {"x/brport", NULL}, {NULL, NULL}};

	make_tree(nodes);
	check(bnet_sysfs_has(tree, "x", 7));
	check(!bnet_sysfs_has(tree, "x", 8));
	check(!bnet_sysfs_has(tree, "y", 7));
	check(bnet_sysfs_is_bridge_port(tree, "x"));
	remove_tree();
}

int main(void)
{
	test_speeds();
	test_places();
	test_no_place();
	test_guids();
	test_namesakes();
	return 0;
}
