/* SPDX-License-Identifier: MIT
 *
 * Element-wise arithmetic as NCCL's kernels do it. Pure: any thread may call it. Floats of 8 and 16 bits are rounded to
 * nearest even after every operation; an 8-bit result that is too large becomes the largest finite number. Integers
 * wrap. Of a number and a NaN, the minimum and the maximum are the number.
 */
#ifndef EMU_KERNEL_REDUCE_H
#define EMU_KERNEL_REDUCE_H

#include "layout/layout.h"

/* Bytes of one element. */
size_t emu_type_bytes(enum emu_type type);

/* dst[i] = op(a[i], b[i]); dst may be a or b. EMU_PREMULSUM and EMU_SUMPOSTDIV add. */
void emu_reduce(void *dst, const void *a, const void *b, size_t count, enum emu_type type, enum emu_op op);

/* dst[i] = src[i] * scalar, whose bits are of the element type; dst may be src. */
void emu_scale(void *dst, const void *src, size_t count, enum emu_type type, uint64_t scalar);

/* buf[i] = buf[i] / divisor, rounded towards zero; integers only, others stay as they are. */
void emu_divide(void *buf, size_t count, enum emu_type type, uint64_t divisor);

#endif
