/* SPDX-License-Identifier: MIT
 *
 * Plays one launch of NCCL's kernel on the calling thread: every channel is a fiber, and so is each part of a channel
 * that a GPU runs on warps of its own (the two halves of a tree, each send and each receive). A fiber that waits for
 * NCCL's proxies gives way to the next one.
 */
#ifndef EMU_KERNEL_H
#define EMU_KERNEL_H

#include "layout/layout.h"

/* Returns when every channel is done or the communicator is aborted. 0, or -1 for a kernel that is not emulated, with
 * its description in *what. */
int emu_kernel_play(const struct emu_launch *launch, const char **what);

/* The number of the loaded NCCL's release, before the first launch: PAT's steps depend on it. Without a call: 2.26 or
 * later. */
void emu_kernel_set_release(int version);

/* out[i] = src[i] * scalar (EMU_PREMULSUM's first half): the kernel of a communicator with one rank. */
void emu_kernel_scale(void *out, const void *src, size_t count, enum emu_type type, uint64_t scalar);

#endif
