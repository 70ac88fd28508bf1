/* SPDX-License-Identifier: MIT
 *
 * The process's descriptors: how many there may be, how many are the library's, and the size of the kernel's table of
 * them. Any thread.
 */
#ifndef BNET_DESCRIPTORS_H
#define BNET_DESCRIPTORS_H

#include <stdbool.h>
#include <stdint.h>

/* Counts a descriptor that was opened elsewhere (epoll, eventfd), for bnet_socket_close. The descriptor, or -errno if
 * fd is negative. */
int bnet_fd_opened(int fd);

/* What to do where none could be opened or watched, or no memory was there, behind a semicolon; "": another error. */
const char *bnet_shortage_remedy(int error);
/* Warns that this could not be made, why, and what to do. Returns error. */
int bnet_shortage(int error, const char *what);

uint64_t bnet_descriptor_limit(void);
/* Does the process have descriptors to spare? Additional streams and unidentified inbound connections may use half of
 * its limit; the other half is left to the job. */
bool bnet_descriptors_left(void);

/* Enlarges the kernel's table of this process's descriptors before it is full, most often doing nothing. When a process
 * of several threads opens a descriptor that the table has no room for, the kernel copies the table and waits for all
 * processors, ten milliseconds and more. So this is called where nobody else waits meanwhile: not under a lock. */
void bnet_descriptors_reserve(void);

#endif
