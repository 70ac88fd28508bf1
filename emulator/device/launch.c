/* SPDX-License-Identifier: MIT
 *
 * Kernel launches: copies the arguments, as CUDA does before the call returns, and appends the kernel to its stream.
 */
#include "device/launch.h"

#include <stdbool.h>
#include <stdlib.h>

#include "device/error.h"
#include "device/stream.h"
#include "kernel/kernel.h"

static const struct emu_layout *layout;
static int (*type_of_scale_kernel)(const void *function);

void emu_launch_configure(const struct emu_layout *use, int (*scale_kernel)(const void *function))
{
	layout = use;
	type_of_scale_kernel = scale_kernel;
}

/* ---- NCCL's collective kernels ---- */

static int play(void *arg)
{
	struct emu_launch *launch = arg;
	const char *what = NULL;
	const int error = emu_kernel_play(launch, &what);

	emu_launch_close(launch);
	free(launch);
	if (error == 0)
		return 0;
	emu_problem_set("The emulated device cannot run this kernel: %s.", what);
	return EMU_CUDA_LAUNCH_FAILED;
}

static int append_kernel(void **pointers, const void *buffer, size_t bytes, void *stream)
{
	struct emu_launch *launch = malloc(sizeof(*launch));
	int error;

	if (launch == NULL)
		return EMU_CUDA_MEMORY;
	if (emu_launch_open(launch, layout, pointers, buffer, bytes) != 0) {
		free(launch);
		return EMU_CUDA_MEMORY;
	}
	error = emu_stream_run(emu_stream_of(stream), play, launch, false);
	if (error != 0) {
		emu_launch_close(launch);
		free(launch);
	}
	return error;
}

/* ---- the kernel of a communicator with one rank ---- */

struct scale {
	void *out;
	const void *src;
	size_t count;
	uint64_t scalar;
	bool is_pointer;
	enum emu_type type;
};

/* A pointer to the scalar is aligned as its type; NCCL reads as many bytes as the alignment allows. */
static uint64_t load_scalar(uintptr_t at)
{
	if (at % 2 != 0)
		return *(const uint8_t *)at;
	if (at % 4 != 0)
		return *(const uint16_t *)at;
	if (at % 8 != 0)
		return *(const uint32_t *)at;
	return *(const uint64_t *)at;
}

static int run_scale(void *arg)
{
	const struct scale *scale = arg;
	const uint64_t scalar = scale->is_pointer ? load_scalar((uintptr_t)scale->scalar) : scale->scalar;

	emu_kernel_scale(scale->out, scale->src, scale->count, scale->type, scalar);
	free(arg);
	return 0;
}

static int append_scale(enum emu_type type, void **pointers, void *stream)
{
	struct scale *scale = malloc(sizeof(*scale));
	int error;

	if (scale == NULL)
		return EMU_CUDA_MEMORY;
	*scale = (struct scale){*(void **)pointers[0],    *(const void **)pointers[1], *(size_t *)pointers[2],
				*(uint64_t *)pointers[3], *(bool *)pointers[4],        type};
	error = emu_stream_run(emu_stream_of(stream), run_scale, scale, false);
	if (error != 0)
		free(scale);
	return error;
}

static int append(const void *function, void **pointers, void **extra, void *stream)
{
	const int type = type_of_scale_kernel(function);

	if (type >= 0 && pointers != NULL)
		return append_scale((enum emu_type)type, pointers, stream);
	if (pointers != NULL)
		return append_kernel(pointers, NULL, 0, stream);
	/* {CU_LAUNCH_PARAM_BUFFER_POINTER, buffer, CU_LAUNCH_PARAM_BUFFER_SIZE, &size, end} */
	if (extra != NULL)
		return append_kernel(NULL, extra[1], *(size_t *)extra[3], stream);
	return EMU_CUDA_INVALID;
}

/* ---- the forms of a launch ---- */

int emu_launch_kernel(const void *function, struct emu_dim grid, struct emu_dim block, void **pointers,
		      size_t shared_bytes, void *stream)
{
	(void)grid;
	(void)block;
	(void)shared_bytes;
	return append(function, pointers, NULL, stream);
}

/* The first fields of cudaLaunchConfig_t. */
struct runtime_config {
	struct emu_dim grid, block;
	size_t shared_bytes;
	void *stream;
};

int emu_launch_kernel_config(const void *config, const void *function, void **pointers)
{
	return append(function, pointers, NULL, ((const struct runtime_config *)config)->stream);
}

int emu_cu_launch(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
		  unsigned block_z, unsigned shared_bytes, void *stream, void **pointers, void **extra)
{
	(void)grid_x, (void)grid_y, (void)grid_z, (void)block_x, (void)block_y, (void)block_z, (void)shared_bytes;
	return append(function, pointers, extra, stream);
}

/* The first fields of CUlaunchConfig. */
struct driver_config {
	unsigned grid[3], block[3], shared_bytes;
	void *stream;
};

int emu_cu_launch_config(const void *config, void *function, void **pointers, void **extra)
{
	return append(function, pointers, extra, ((const struct driver_config *)config)->stream);
}

/* ---- host functions ---- */

struct host_call {
	void (*function)(void *);
	void *arg;
};

static int run_host(void *arg)
{
	const struct host_call call = *(struct host_call *)arg;

	free(arg);
	call.function(call.arg);
	return 0;
}

int emu_launch_host_function(void *stream, void (*function)(void *), void *arg)
{
	struct host_call *call = malloc(sizeof(*call));
	int error;

	if (call == NULL)
		return EMU_CUDA_MEMORY;
	*call = (struct host_call){function, arg};
	error = emu_stream_run(emu_stream_of(stream), run_host, call, false);
	if (error != 0)
		free(call);
	return error;
}
