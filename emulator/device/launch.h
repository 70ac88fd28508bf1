/* SPDX-License-Identifier: MIT
 *
 * Kernel launches, in the forms of CUDA's runtime and driver. The launch runs on its stream. Any thread.
 */
#ifndef EMU_LAUNCH_H
#define EMU_LAUNCH_H

#include <stddef.h>

#include "layout/layout.h"

/* What every launch needs; once, before the first. scale_kernel(function) is the element type that a kernel for
 * communicators of one rank scales, or -1 for NCCL's other kernels. */
void emu_launch_configure(const struct emu_layout *layout, int (*scale_kernel)(const void *function));

/* dim3, as the calling convention passes it: by value, 12 bytes. */
struct emu_dim {
	unsigned x, y, z;
};

int emu_launch_kernel(const void *function, struct emu_dim grid, struct emu_dim block, void **pointers,
		      size_t shared_bytes, void *stream);
int emu_launch_kernel_config(const void *config, const void *function, void **pointers);
int emu_cu_launch(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
		  unsigned block_z, unsigned shared_bytes, void *stream, void **pointers, void **extra);
int emu_cu_launch_config(const void *config, void *function, void **pointers, void **extra);
int emu_launch_host_function(void *stream, void (*function)(void *), void *arg);

#endif
