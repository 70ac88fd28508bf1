/* SPDX-License-Identifier: MIT
 *
 * CRC-32C: the values of RFC 3720, B.4, and that both ways to compute it agree at every length and in any parts.
 */
#include "base/crc32c.h"

#include <stdint.h>
#include <string.h>

#include "check.h"

static void the_published_values(void)
{
	uint8_t bytes[32];

	check_int(bnet_crc32c(0, "123456789", 9), 0xe3069283);
	check_int(bnet_crc32c(0, bytes, 0), 0);
	memset(bytes, 0, sizeof(bytes));
	check_int(bnet_crc32c(0, bytes, sizeof(bytes)), 0x8a9136aa);
	memset(bytes, 0xff, sizeof(bytes));
	check_int(bnet_crc32c(0, bytes, sizeof(bytes)), 0x62a8ab43);
	for (size_t i = 0; i < sizeof(bytes); i++)
		bytes[i] = (uint8_t)i;
	check_int(bnet_crc32c(0, bytes, sizeof(bytes)), 0x46dd794e);
	check_int(bnet_crc32c_portable(0, bytes, sizeof(bytes)), 0x46dd794e);
}

static void any_length_in_any_parts(void)
{
	uint8_t bytes[300];

	for (size_t i = 0; i < sizeof(bytes); i++)
		bytes[i] = (uint8_t)(i * 37 + i / 7);
	for (size_t size = 0; size <= sizeof(bytes); size++) {
		const uint32_t whole = bnet_crc32c_portable(0, bytes, size);

		for (size_t first = 0; first <= size; first += 1 + size / 9)
			check_int(bnet_crc32c(bnet_crc32c(0, bytes, first), bytes + first, size - first), whole);
	}
}

int main(void)
{
	the_published_values();
	any_length_in_any_parts();
	return 0;
}
