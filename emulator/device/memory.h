/* SPDX-License-Identifier: MIT
 *
 * The memory functions of CUDA's runtime, with its arguments; each returns 0 or a cudaError_t. A stream is a
 * cudaStream_t. Any thread.
 */
#ifndef EMU_MEMORY_H
#define EMU_MEMORY_H

#include <stddef.h>

int emu_malloc(void **out, size_t size);
int emu_host_alloc(void **out, size_t size, unsigned flags);
/* Waits for all streams first. */
int emu_free(void *pointer);
int emu_malloc_async(void **out, size_t size, void *pool, void *stream);
int emu_free_async(void *pointer, void *stream);
int emu_host_register(void *pointer, size_t size, unsigned flags);
int emu_host_unregister(void *pointer);
int emu_host_device_pointer(void **out, void *pointer, unsigned flags);
int emu_pointer_attributes(void *out, const void *pointer);
int emu_memcpy(void *to, const void *from, size_t size, int kind);
int emu_memset(void *to, int value, size_t size);
int emu_memcpy_async(void *to, const void *from, size_t size, int kind, void *stream);
int emu_memset_async(void *to, int value, size_t size, void *stream);

#endif
