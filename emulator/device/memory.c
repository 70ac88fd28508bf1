/* SPDX-License-Identifier: MIT
 *
 * Device and pinned memory: anonymous mappings of this process, so every address is valid on both sides. A block's
 * size stands in the page before it. Any thread.
 */
#include "device/memory.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "device/error.h"
#include "device/stream.h"

enum { HEADER = 4096 };

struct header {
	size_t bytes; /* of the mapping */
	size_t size;  /* that was asked for */
};

static int map(void **out, size_t size)
{
	const size_t bytes = HEADER + ((size + HEADER - 1) & ~(size_t)(HEADER - 1));
	char *block;

	*out = NULL;
	if (size == 0)
		return 0;
	if (bytes < size)
		return EMU_CUDA_MEMORY;
	block = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (block == MAP_FAILED)
		return EMU_CUDA_MEMORY;
	*(struct header *)block = (struct header){bytes, size};
	*out = block + HEADER;
	return 0;
}

static int unmap(void *pointer)
{
	struct header *header;

	if (pointer == NULL)
		return 0;
	header = (struct header *)((char *)pointer - HEADER);
	munmap(header, header->bytes);
	return 0;
}

int emu_malloc(void **out, size_t size)
{
	return map(out, size);
}

int emu_host_alloc(void **out, size_t size, unsigned flags)
{
	(void)flags;
	return map(out, size);
}

int emu_free(void *pointer)
{
	/* As on a GPU, where freeing memory waits for the kernels that may use it. */
	if (pointer != NULL)
		emu_stream_wait_all();
	return unmap(pointer);
}

int emu_malloc_async(void **out, size_t size, void *pool, void *stream)
{
	(void)pool;
	(void)stream;
	return map(out, size);
}

int emu_free_async(void *pointer, void *stream)
{
	return emu_stream_run(emu_stream_of(stream), unmap, pointer, true);
}

int emu_host_register(void *pointer, size_t size, unsigned flags)
{
	(void)pointer;
	(void)size;
	(void)flags;
	return 0;
}

int emu_host_unregister(void *pointer)
{
	(void)pointer;
	return 0;
}

int emu_host_device_pointer(void **out, void *pointer, unsigned flags)
{
	(void)flags;
	*out = pointer;
	return 0;
}

/* The first fields of cudaPointerAttributes. */
struct attributes {
	int type, device;
	void *on_device, *on_host;
};

int emu_pointer_attributes(void *out, const void *pointer)
{
	enum { DEVICE_MEMORY = 2 };

	*(struct attributes *)out =
		(struct attributes){DEVICE_MEMORY, 0, (void *)(uintptr_t)pointer, (void *)(uintptr_t)pointer};
	return 0;
}

/* ---- copies ---- */

int emu_memcpy(void *to, const void *from, size_t size, int kind)
{
	(void)kind;
	memmove(to, from, size);
	return 0;
}

int emu_memset(void *to, int value, size_t size)
{
	memset(to, value, size);
	return 0;
}

struct transfer {
	void *to;
	const void *from; /* NULL: set to value */
	size_t size;
	int value;
};

static void transfer(const struct transfer *one)
{
	if (one->from != NULL)
		memmove(one->to, one->from, one->size);
	else
		memset(one->to, one->value, one->size);
}

static int run_transfer(void *arg)
{
	transfer(arg);
	free(arg);
	return 0;
}

static int append(void *stream, struct transfer one)
{
	struct transfer *copy = malloc(sizeof(*copy));
	int error;

	if (copy == NULL)
		return EMU_CUDA_MEMORY;
	*copy = one;
	error = emu_stream_run(emu_stream_of(stream), run_transfer, copy, true);
	if (error != 0)
		free(copy);
	return error;
}

int emu_memcpy_async(void *to, const void *from, size_t size, int kind, void *stream)
{
	(void)kind;
	return size == 0 ? 0 : append(stream, (struct transfer){to, from, size, 0});
}

int emu_memset_async(void *to, int value, size_t size, void *stream)
{
	return append(stream, (struct transfer){to, NULL, size, value});
}
