/* SPDX-License-Identifier: MIT
 *
 * See pull.h. A sender that ends its operation takes the token away before its caller may use the buffer again. So a
 * piece is the message's if the token, which the same call reads after it, is still there. The token also exposes a
 * process ID that another process has got meanwhile.
 */
#include "tagged/pull.h"

#include <errno.h>
#include <sys/uio.h>

/* Of one call, which the kernel limits to 2 GiB. */
#define PIECE ((size_t)256 * 1024 * 1024)

static int pull_piece(const struct bnet_tagged_offer *offer, size_t at, char *to, size_t bytes)
{
	uint64_t token = 0;
	const struct iovec here[] = {{to, bytes}, {&token, sizeof(token)}};
	const struct iovec there[] = {{(void *)(uintptr_t)(offer->buffer + at), bytes},
				      {(void *)(uintptr_t)offer->token_at, sizeof(token)}};
	const ssize_t got = process_vm_readv((pid_t)offer->process, here, 2, there, 2, 0);

	if (got < 0)
		return errno == EFAULT ? -ESTALE : -errno;
	return (size_t)got == bytes + sizeof(token) && token == offer->token ? 0 : -ESTALE;
}

int bnet_tagged_pull(const struct bnet_tagged_offer *offer, char *to, size_t bytes)
{
	for (size_t at = 0; at < bytes; at += PIECE) {
		int rc = pull_piece(offer, at, to + at, bytes - at < PIECE ? bytes - at : PIECE);

		if (rc != 0)
			return rc;
	}
	return 0;
}
