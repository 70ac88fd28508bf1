/* SPDX-License-Identifier: MIT
 *
 * See crc32c.h.
 */
#include "base/crc32c.h"

#include <stdbool.h>
#include <string.h>
#ifdef __aarch64__
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#define POLYNOMIAL UINT32_C(0x82f63b78) /* reflected */

/* Four bits at a time: a table that is no larger needs no start. */
uint32_t bnet_crc32c_portable(uint32_t before, const void *bytes, size_t size)
{
	static const uint32_t table[16] = {
		0x00000000, 0x105ec76f, 0x20bd8ede, 0x30e349b1, 0x417b1dbc, 0x5125dad3, 0x61c69362, 0x7198540d,
		0x82f63b78, 0x92a8fc17, 0xa24bb5a6, 0xb21572c9, 0xc38d26c4, 0xd3d3e1ab, 0xe330a81a, 0xf36e6f75,
	};
	const uint8_t *at = bytes;
	uint32_t crc = ~before;

	for (; size; size--) {
		crc ^= *at++;
		crc = crc >> 4 ^ table[crc & 15];
		crc = crc >> 4 ^ table[crc & 15];
	}
	return ~crc;
}

#if defined __x86_64__
static bool has_instruction(void)
{
	return __builtin_cpu_supports("sse4.2");
}

__attribute__((target("sse4.2"))) static uint32_t by_instruction(uint32_t before, const uint8_t *at, size_t size)
{
	uint64_t crc = (uint32_t)~before, word;

	for (; size >= sizeof(word); size -= sizeof(word), at += sizeof(word)) {
		memcpy(&word, at, sizeof(word));
		crc = __builtin_ia32_crc32di(crc, word);
	}
	for (; size; size--)
		crc = __builtin_ia32_crc32qi((uint32_t)crc, *at++);
	return ~(uint32_t)crc;
}
#elif defined __aarch64__
static bool has_instruction(void)
{
	return getauxval(AT_HWCAP) & HWCAP_CRC32;
}

__attribute__((target("arch=armv8-a+crc"))) static uint32_t by_instruction(uint32_t before, const uint8_t *at,
									   size_t size)
{
	uint32_t crc = ~before;
	uint64_t word;

	for (; size >= sizeof(word); size -= sizeof(word), at += sizeof(word)) {
		memcpy(&word, at, sizeof(word));
		__asm__("crc32cx %w0, %w0, %x1" : "+r"(crc) : "r"(word));
	}
	for (; size; size--, at++)
		__asm__("crc32cb %w0, %w0, %w1" : "+r"(crc) : "r"((uint32_t)*at));
	return ~crc;
}
#endif

uint32_t bnet_crc32c(uint32_t before, const void *bytes, size_t size)
{
#if defined __x86_64__ || defined __aarch64__
	if (has_instruction())
		return by_instruction(before, bytes, size);
#endif
	return bnet_crc32c_portable(before, bytes, size);
}
