/* SPDX-License-Identifier: MIT
 *
 * Writes NCCL's memory for tests of the emulator, byte by byte. Any thread.
 */
#ifndef EMU_BYTES_H
#define EMU_BYTES_H

#include <stdint.h>
#include <string.h>

/* The lowest bytes of value. */
static inline void put(char *base, size_t offset, uint64_t value, size_t bytes)
{
	memcpy(base + offset, &value, bytes);
}

static inline void put_pointer(char *base, size_t offset, const void *pointer)
{
	put(base, offset, (uint64_t)(uintptr_t)pointer, 8);
}

#endif
