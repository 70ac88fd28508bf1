/* SPDX-License-Identifier: MIT
 *
 * Lists of address prefixes: which entry has an address, and which is none.
 */
#include "base/prefix.h"
#include "check.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* found: the entry that has the address; NULL: none. */
static const struct {
	const char *list, *address, *found;
} rows[] = {
	{"10.0.0.0/8", "10.255.0.1", "10.0.0.0/8"},
	{"10.0.0.0/8", "11.0.0.1", NULL},
	{"10.77.3.9/8", "10.0.0.1", "10.77.3.9/8"},
	{"10.0.0.4", "10.0.0.4", "10.0.0.4"},
	{"10.0.0.4", "10.0.0.5", NULL},
	{"10.0.0.4/32", "10.0.0.4", "10.0.0.4/32"},
	{"172.16.0.0/12", "172.31.255.255", "172.16.0.0/12"},
	{"172.16.0.0/12", "172.32.0.0", NULL},
	{"0.0.0.0/0", "203.0.113.7", "0.0.0.0/0"},
	{"0.0.0.0/0", "fd00::1", NULL},
	{"::/0", "fd00::1", "::/0"},
	{"::/0", "10.0.0.1", NULL},
	{"fd00::/8", "fdff::1", "fd00::/8"},
	{"fd00::/9", "fd80::1", NULL},
	{"fd00::4", "fd00::4", "fd00::4"},
	{"fd00::4", "fd00::5", NULL},
	{"fd00::4/127", "fd00::5", "fd00::4/127"},
	{"192.168.0.0/16,10.0.0.0/8,10.1.0.0/16", "10.1.0.1", "10.0.0.0/8"},
	{"eth0,,10.0.0.0/33,10.0.0.0/8", "10.1.0.1", "10.0.0.0/8"},
	{"", "10.0.0.1", NULL},
};

static void test_find(void)
{
	for (size_t i = 0; i < COUNT(rows); i++) {
		struct sockaddr_storage addr = {.ss_family = strchr(rows[i].address, ':') ? AF_INET6 : AF_INET};
		void *bytes = addr.ss_family == AF_INET6 ? (void *)&((struct sockaddr_in6 *)&addr)->sin6_addr
							 : (void *)&((struct sockaddr_in *)&addr)->sin_addr;
		const char *found;
		char text[64] = "";
		size_t len;

		check_int(inet_pton(addr.ss_family, rows[i].address, bytes), 1);
		found = bnet_prefixes_find(rows[i].list, (struct sockaddr *)&addr, &len);
		if (found)
			snprintf(text, sizeof(text), "%.*s", (int)len, found);
		if (strcmp(text, rows[i].found ? rows[i].found : "") != 0)
			fprintf(stderr, "%s in %s\n", rows[i].address, rows[i].list);
		check_str(text, rows[i].found ? rows[i].found : "");
	}
}

/* bad: the first entry that is no prefix; NULL: none. */
static const struct {
	const char *list, *bad;
} lists[] = {
	{"", NULL},
	{"10.0.0.0/8,fd00::/8,10.0.0.4,::1", NULL},
	{"10.0.0.0/0", NULL},
	{"10.0.0.0/32", NULL},
	{"fd00::/128", NULL},
	{"10.0.0.0/33", "10.0.0.0/33"},
	{"fd00::/129", "fd00::/129"},
	{"10.0.0.0/", "10.0.0.0/"},
	{"10.0.0.0/8/8", "10.0.0.0/8/8"},
	{"10.0.0.0/-1", "10.0.0.0/-1"},
	{"10.0.0.0/+8", "10.0.0.0/+8"},
	{"10.0.0.0/0008", "10.0.0.0/0008"},
	{"10.0.0.0/255.0.0.0", "10.0.0.0/255.0.0.0"},
	{"10.0.0/8", "10.0.0/8"},
	{"10/8", "10/8"},
	{"/8", "/8"},
	{"eth0", "eth0"},
	{"fe80::1%eth0", "fe80::1%eth0"},
	{"\"10.0.0.0/8\"", "\"10.0.0.0/8\""},
	{"10.0.0.0/8, fd00::/8", " fd00::/8"},
	{"10.0.0.0/8,", ""},
	{",10.0.0.0/8", ""},
	{"10.0.0.0/8,1111:2222:3333:4444:5555:6666:7777:8888:9999:aaaa:bbbb/8,x",
	 "1111:2222:3333:4444:5555:6666:7777:8888:9999:aaaa:bbbb/8"},
};

static void test_bad(void)
{
	for (size_t i = 0; i < COUNT(lists); i++) {
		char text[80] = "none";
		size_t len;
		const char *bad = bnet_prefixes_bad(lists[i].list, &len);

		if (bad)
			snprintf(text, sizeof(text), "%.*s", (int)len, bad);
		check_str(text, lists[i].bad ? lists[i].bad : "none");
	}
}

int main(void)
{
	test_find();
	test_bad();
	return 0;
}
