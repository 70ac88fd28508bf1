/* SPDX-License-Identifier: MIT
 *
 * CRC-32C (Castagnoli, RFC 3720 B.4), by the processor's instruction where it has one. Pure; any thread.
 */
#ifndef BNET_CRC32C_H
#define BNET_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* before: of the bytes that came before; 0: of none. */
uint32_t bnet_crc32c(uint32_t before, const void *bytes, size_t size);
/* The same without the instruction. */
uint32_t bnet_crc32c_portable(uint32_t before, const void *bytes, size_t size);

#endif
