/* SPDX-License-Identifier: MIT
 *
 * FNV-1a, in 32 and 64 bits. Pure; any thread.
 */
#ifndef BNET_HASH_H
#define BNET_HASH_H

#include <stddef.h>
#include <stdint.h>

static inline uint32_t bnet_fnv1a_32(const void *data, size_t size)
{
	const unsigned char *byte = data;
	uint32_t hash = UINT32_C(2166136261);

	for (size_t i = 0; i < size; i++)
		hash = (hash ^ byte[i]) * UINT32_C(16777619);
	return hash;
}

/* hash: BNET_FNV1A_64, or what a call for the bytes before has returned. */
#define BNET_FNV1A_64 UINT64_C(0xcbf29ce484222325)
static inline uint64_t bnet_fnv1a_64(uint64_t hash, const void *data, size_t size)
{
	const unsigned char *byte = data;

	for (size_t i = 0; i < size; i++)
		hash = (hash ^ byte[i]) * UINT64_C(0x100000001b3);
	return hash;
}

#endif
