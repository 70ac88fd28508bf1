/* SPDX-License-Identifier: MIT
 *
 * See prefix.h. Any thread.
 */
#include "base/prefix.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define MAX_TEXT (INET6_ADDRSTRLEN + 4) /* with "/128" */

struct prefix {
	int family;
	int bits;
	unsigned char bytes[sizeof(struct in6_addr)];
};

static bool parse_bits(const char *text, int most, int *out)
{
	size_t digits = strspn(text, "0123456789");

	if (digits < 1 || digits > 3 || text[digits])
		return false;
	*out = atoi(text);
	return *out <= most;
}

static bool parse(const char *text, size_t len, struct prefix *out)
{
	char copy[MAX_TEXT], *slash;

	if (len >= sizeof(copy))
		return false;
	memcpy(copy, text, len);
	copy[len] = '\0';
	slash = strchr(copy, '/');
	if (slash)
		*slash = '\0';
	out->family = strchr(copy, ':') ? AF_INET6 : AF_INET;
	out->bits = out->family == AF_INET6 ? 128 : 32;
	if (inet_pton(out->family, copy, out->bytes) != 1)
		return false;
	return !slash || parse_bits(slash + 1, out->bits, &out->bits);
}

static bool has(const struct prefix *prefix, const struct sockaddr *addr)
{
	const unsigned char *own = addr->sa_family == AF_INET6
					   ? ((const struct sockaddr_in6 *)addr)->sin6_addr.s6_addr
					   : (const unsigned char *)&((const struct sockaddr_in *)addr)->sin_addr;
	int whole = prefix->bits / 8, rest = prefix->bits % 8;

	if (addr->sa_family != prefix->family || memcmp(own, prefix->bytes, (size_t)whole) != 0)
		return false;
	return rest == 0 || (own[whole] ^ prefix->bytes[whole]) >> (8 - rest) == 0;
}

/* addr NULL: the first entry that is no prefix; otherwise the first prefix that has it. */
static const char *search(const char *list, const struct sockaddr *addr, size_t *len)
{
	for (;; list += *len + 1) {
		struct prefix prefix;
		bool parsed;

		*len = strcspn(list, ",");
		parsed = parse(list, *len, &prefix);
		if (addr ? parsed && has(&prefix, addr) : !parsed)
			return list;
		if (!list[*len])
			return NULL;
	}
}

const char *bnet_prefixes_bad(const char *list, size_t *len)
{
	return *list ? search(list, NULL, len) : NULL;
}

const char *bnet_prefixes_find(const char *list, const struct sockaddr *addr, size_t *len)
{
	return search(list, addr, len);
}
