/* SPDX-License-Identifier: MIT
 *
 * Sums and products of 8-bit floats. Pure: any thread may call them. Results are rounded once, to nearest even, and
 * saturate: neither format gets an infinity that was not exact.
 */
#ifndef EMU_KERNEL_FLOAT8_H
#define EMU_KERNEL_FLOAT8_H

#include <stdbool.h>

#include "layout/layout.h"

/* dst[i] = a[i] + b[i], or a[i] * b[i]; dst may be a or b. type: EMU_FLOAT8E4M3 or EMU_FLOAT8E5M2. */
void emu_float8_reduce(void *dst, const void *a, const void *b, size_t count, enum emu_type type, bool product);

/* One value; for tests and scalars. */
float emu_float8_widen(uint8_t value, enum emu_type type);
uint8_t emu_float8_narrow(float value, enum emu_type type);

#endif
