/* SPDX-License-Identifier: MIT
 *
 * Names that processes of one network namespace share: abstract sockets. A name lasts as long as the descriptor that
 * is bound to it, so that none outlives its process. Any thread; no state.
 */
#ifndef BNET_ABSTRACT_H
#define BNET_ABSTRACT_H

#include <stdbool.h>

/* A descriptor that has the name {subject, device, number}; -EADDRINUSE: another one has it; another -errno. */
int bnet_abstract_bind(const char *subject, int ifindex, int number);
/* Does any process have that name? fd: a datagram socket of the AF_UNIX family. */
bool bnet_abstract_exists(int fd, const char *subject, int ifindex, int number);

#endif
