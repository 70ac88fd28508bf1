/* SPDX-License-Identifier: MIT
 *
 * The headers that a network card with TCP segmentation would write, for a range of segments instead of each. Pure
 * functions, callable from any thread.
 */
#include "segments.h"

#include <arpa/inet.h>
#include <linux/virtio_net.h>
#include <netinet/in.h>
#include <netinet/ip.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <string.h>

#define VNET sizeof(struct virtio_net_hdr)

/* Bytes of the three headers; 0 if this is not a large packet of TCP and IPv4. */
static size_t headers_of(const char *packet, size_t size)
{
	struct virtio_net_hdr vnet;
	struct iphdr ip;
	struct tcphdr tcp;
	size_t tcp_at;

	memcpy(&vnet, packet, VNET);
	if ((vnet.gso_type & ~VIRTIO_NET_HDR_GSO_ECN) != VIRTIO_NET_HDR_GSO_TCPV4 || !vnet.gso_size)
		return 0;
	if (size < VNET + sizeof(ip))
		return 0;
	memcpy(&ip, packet + VNET, sizeof(ip));
	tcp_at = VNET + ip.ihl * 4u;
	if (ip.version != 4 || ip.ihl < 5 || ip.protocol != IPPROTO_TCP || size < tcp_at + sizeof(tcp))
		return 0;
	memcpy(&tcp, packet + tcp_at, sizeof(tcp));
	return tcp.doff >= 5 && tcp_at + tcp.doff * 4u < size ? tcp_at + tcp.doff * 4u : 0;
}

void segments_find(const void *packet, size_t size, struct segments *out)
{
	struct virtio_net_hdr vnet;

	*out = (struct segments){.packet = packet, .size = size, .count = 1, .headers = headers_of(packet, size)};
	if (!out->headers)
		return;
	memcpy(&vnet, packet, VNET);
	out->each = vnet.gso_size;
	out->count = (uint32_t)((size - out->headers + out->each - 1) / out->each);
}

/* ---- headers of a part ---- */

/* RFC 1071, without the complement. */
static uint32_t sum(const void *bytes, size_t size, uint32_t start)
{
	const char *at = bytes;

	for (size_t i = 0; i + 1 < size; i += 2) {
		uint16_t word;

		memcpy(&word, at + i, sizeof(word));
		start += word;
	}
	return start;
}

static uint16_t fold(uint32_t total)
{
	total = (total & 0xffff) + (total >> 16);
	return (uint16_t)((total & 0xffff) + (total >> 16));
}

/* The headers' share of the checksum; the payload's is left to the card. */
static uint16_t pseudo_header(const struct iphdr *ip, size_t tcp_size)
{
	uint32_t addresses = sum(&ip->saddr, sizeof(ip->saddr), sum(&ip->daddr, sizeof(ip->daddr), 0));

	return fold(addresses + htons(IPPROTO_TCP) + htons((uint16_t)tcp_size));
}

static void rewrite_ip(char *header, size_t header_size, size_t size, uint32_t first)
{
	struct iphdr ip;

	memcpy(&ip, header, sizeof(ip));
	ip.tot_len = htons((uint16_t)size);
	ip.id = htons((uint16_t)(ntohs(ip.id) + first));
	ip.check = 0;
	memcpy(header, &ip, sizeof(ip));
	ip.check = (uint16_t)~fold(sum(header, header_size, 0));
	memcpy(header, &ip, sizeof(ip));
}

static void rewrite_tcp(char *header, size_t offset, bool to_the_end, uint16_t check)
{
	struct tcphdr tcp;

	memcpy(&tcp, header, sizeof(tcp));
	tcp.seq = htonl(ntohl(tcp.seq) + (uint32_t)offset);
	if (!to_the_end)
		tcp.fin = tcp.psh = 0;
	if (offset)
		tcp.res2 &= 1; /* CWR is the upper bit of the two that RFC 3168 took from the reserved ones */
	tcp.check = check;
	memcpy(header, &tcp, sizeof(tcp));
}

void segments_cut(const struct segments *whole, uint32_t first, uint32_t end, char headers[SEGMENTS_MAX_HEADERS],
		  struct iovec parts[2])
{
	size_t offset = first * whole->each;
	bool to_the_end = end == whole->count;
	size_t payload = to_the_end ? whole->size - whole->headers - offset : (end - first) * whole->each;
	size_t on_wire = whole->headers - VNET + payload;
	struct virtio_net_hdr vnet;
	struct iphdr ip;
	size_t ip_size;

	memcpy(headers, whole->packet, whole->headers);
	memcpy(&vnet, headers, VNET);
	vnet.hdr_len = (uint16_t)(whole->headers - VNET);
	if (end - first == 1)
		vnet.gso_type = vnet.gso_size = 0;
	memcpy(headers, &vnet, VNET);
	memcpy(&ip, headers + VNET, sizeof(ip));
	ip_size = ip.ihl * 4u;
	rewrite_ip(headers + VNET, ip_size, on_wire, first);
	rewrite_tcp(headers + VNET + ip_size, offset, to_the_end, pseudo_header(&ip, on_wire - ip_size));
	parts[0] = (struct iovec){.iov_base = headers, .iov_len = whole->headers};
	parts[1] = (struct iovec){.iov_base = (char *)whole->packet + whole->headers + offset, .iov_len = payload};
}
