/* SPDX-License-Identifier: MIT
 *
 * Our description of the kernel's TCP_INFO agrees with that of the system's headers.
 */
#define _NETINET_TCP_H 1 /* glibc's, which knows less of it */
#include <linux/tcp.h>

#include "check.h"
#include "base/tcp_info.h"

#define SAME(ours, theirs) check_int(offsetof(struct bnet_tcp_info, ours), offsetof(struct tcp_info, theirs))

int main(void)
{
	SAME(state, tcpi_state);
	SAME(retransmits, tcpi_retransmits);
	SAME(probes, tcpi_probes);
	SAME(backoff, tcpi_backoff);
	SAME(snd_mss, tcpi_snd_mss);
	SAME(unacked, tcpi_unacked);
	SAME(rtt, tcpi_rtt);
	SAME(bytes_acked, tcpi_bytes_acked);
	SAME(bytes_received, tcpi_bytes_received);
	SAME(segs_in, tcpi_segs_in);
	SAME(min_rtt, tcpi_min_rtt);
	SAME(delivery_rate, tcpi_delivery_rate);
	SAME(busy_time, tcpi_busy_time);
	SAME(rwnd_limited, tcpi_rwnd_limited);
	SAME(sndbuf_limited, tcpi_sndbuf_limited);
	return 0;
}
