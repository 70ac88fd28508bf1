/* SPDX-License-Identifier: MIT
 *
 * See local.h. The kernel is asked for the route to the address: its type is "local" on this machine.
 */
#include "device/local.h"

#include <linux/rtnetlink.h>
#include <netinet/in.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

struct question {
	struct nlmsghdr header;
	struct rtmsg route;
	char attributes[RTA_SPACE(sizeof(struct in6_addr)) + RTA_SPACE(sizeof(uint32_t))];
};

static void add_attribute(struct question *question, unsigned short type, const void *value, size_t size)
{
	struct rtattr *attribute = (void *)((char *)question + NLMSG_ALIGN(question->header.nlmsg_len));

	attribute->rta_type = type;
	attribute->rta_len = (unsigned short)RTA_LENGTH(size);
	memcpy(RTA_DATA(attribute), value, size);
	question->header.nlmsg_len = (uint32_t)(NLMSG_ALIGN(question->header.nlmsg_len) + RTA_SPACE(size));
}

static void ask(struct question *question, int family, const void *address, size_t size, uint32_t interface)
{
	*question = (struct question){
		.header = {.nlmsg_type = RTM_GETROUTE,
			   .nlmsg_flags = NLM_F_REQUEST,
			   .nlmsg_len = NLMSG_LENGTH(sizeof(struct rtmsg))},
		.route = {.rtm_family = (unsigned char)family, .rtm_dst_len = (unsigned char)(8 * size)},
	};
	add_attribute(question, RTA_DST, address, size);
	if (interface)
		add_attribute(question, RTA_OIF, &interface, sizeof(interface));
}

/* Writes the question; false if the address is not an IP address. ::ffff:10.0.0.1 counts as 10.0.0.1. */
static bool ask_for(struct question *question, const struct sockaddr *addr)
{
	const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)addr;
	const struct sockaddr_in *in = (const struct sockaddr_in *)addr;

	if (addr->sa_family == AF_INET)
		ask(question, AF_INET, &in->sin_addr, sizeof(in->sin_addr), 0);
	else if (addr->sa_family == AF_INET6 && IN6_IS_ADDR_V4MAPPED(&in6->sin6_addr))
		ask(question, AF_INET, &in6->sin6_addr.s6_addr[12], sizeof(in->sin_addr), 0);
	else if (addr->sa_family == AF_INET6)
		ask(question, AF_INET6, &in6->sin6_addr, sizeof(in6->sin6_addr),
		    IN6_IS_ADDR_LINKLOCAL(&in6->sin6_addr) ? in6->sin6_scope_id : 0);
	else
		return false;
	return true;
}

/* The kernel answers before send returns. */
static bool route_is_local(int fd, const struct question *question)
{
	union {
		struct nlmsghdr header;
		char bytes[4096];
	} answer;
	ssize_t n = send(fd, question, question->header.nlmsg_len, 0);
	const struct rtmsg *route = NLMSG_DATA(&answer.header);

	if (n < 0)
		return false;
	n = recv(fd, answer.bytes, sizeof(answer.bytes), MSG_DONTWAIT);
	return n >= (ssize_t)NLMSG_LENGTH(sizeof(*route)) && answer.header.nlmsg_type == RTM_NEWROUTE &&
	       route->rtm_type == RTN_LOCAL;
}

bool bnet_address_is_local(const struct sockaddr *addr)
{
	struct question question;
	bool local;
	int fd;

	if (!ask_for(&question, addr))
		return false;
	fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);
	if (fd < 0)
		return false;
	local = route_is_local(fd, &question);
	close(fd);
	return local;
}
