/* SPDX-License-Identifier: MIT
 *
 * What TCP_INFO answers up to the fields that are used, as Linux lays it out since 4.10. The headers of a toolchain may
 * be older than the kernel that runs. Any thread; no state.
 */
#ifndef BNET_TCP_INFO_H
#define BNET_TCP_INFO_H

#include <assert.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>

struct bnet_tcp_info {
	uint8_t state, ca_state, retransmits, probes, backoff, options, window_scales, flags;
	uint32_t rto, ato, snd_mss, rcv_mss;
	uint32_t unacked, sacked, lost, retrans, fackets;
	uint32_t last_data_sent, last_ack_sent, last_data_received, last_ack_received;
	uint32_t pmtu, rcv_ssthresh, rtt, rttvar, snd_ssthresh, snd_cwnd, advmss, reordering;
	uint32_t rcv_rtt, rcv_space, total_retrans;
	uint64_t pacing_rate, max_pacing_rate, bytes_acked, bytes_received;
	uint32_t segs_out, segs_in, notsent_bytes, min_rtt, data_segs_in, data_segs_out;
	uint64_t delivery_rate, busy_time, rwnd_limited, sndbuf_limited;
};

static_assert(offsetof(struct bnet_tcp_info, bytes_acked) == 120, "as in the kernel");
static_assert(sizeof(struct bnet_tcp_info) == 192, "as in the kernel");

/* False: an error, or the kernel has fewer than `bytes` of it. */
static inline bool bnet_tcp_info_read(int fd, struct bnet_tcp_info *info, size_t bytes)
{
	socklen_t size = sizeof(*info);

	memset(info, 0, sizeof(*info));
	return getsockopt(fd, IPPROTO_TCP, TCP_INFO, info, &size) == 0 && size >= bytes;
}

#endif
