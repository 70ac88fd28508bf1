/* SPDX-License-Identifier: MIT
 *
 * Lists of address prefixes, such as "10.0.0.0/8,fd00::/8". An entry without a length is one address. What an entry has
 * beyond its length counts for nothing. Pure: any thread.
 */
#ifndef BNET_PREFIX_H
#define BNET_PREFIX_H

#include <stddef.h>
#include <sys/socket.h>

/* Returns the first entry of the list that is not a prefix, and its length in *len; NULL if all are, as in an empty
 * list. */
const char *bnet_prefixes_bad(const char *list, size_t *len);
/* The list's first prefix that has the address, likewise. It passes over entries that are no prefixes. */
const char *bnet_prefixes_find(const char *list, const struct sockaddr *addr, size_t *len);

#endif
