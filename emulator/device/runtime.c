/* SPDX-License-Identifier: MIT
 *
 * CUDA's runtime, as far as NCCL calls it: one device, its properties, streams and events by their handles, and the
 * table of all answers. Structures and attribute numbers: driver_types.h of CUDA 12.
 */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "device/answers.h"
#include "device/error.h"
#include "device/launch.h"
#include "device/memory.h"
#include "device/stream.h"
#include "device/topology.h"

enum { CUDA_VERSION = 12020, MEMORY_BYTES = 1 << 30 };

/* ---- the device ---- */

static int get_device(int *device)
{
	*device = 0;
	return 0;
}

static int set_device(int device)
{
	return device == 0 ? 0 : EMU_CUDA_INVALID;
}

static int get_device_count(int *devices)
{
	*devices = 1;
	return 0;
}

static int get_version(int *version)
{
	*version = CUDA_VERSION;
	return 0;
}

static int get_bus_id(char *text, int size, int device)
{
	(void)device;
	snprintf(text, (size_t)size, "%s", EMU_BUS_ID);
	return 0;
}

static int get_by_bus_id(int *device, const char *bus_id)
{
	(void)bus_id;
	return get_device(device);
}

/* Attributes that say no are 0: GPUDirect, peer access, multicast, virtual memory management. */
static int get_attribute(int *value, int attribute, int device)
{
	enum { MULTIPROCESSORS = 16, CAPABILITY_MAJOR = 75, CAPABILITY_MINOR = 76, SHARED_MEMORY_OPTIN = 97 };

	(void)device;
	switch (attribute) {
	case CAPABILITY_MAJOR:
		*value = EMU_CAPABILITY_MAJOR;
		break;
	case CAPABILITY_MINOR:
		*value = EMU_CAPABILITY_MINOR;
		break;
	case MULTIPROCESSORS:
		*value = 108;
		break;
	case SHARED_MEMORY_OPTIN:
		*value = 163 * 1024;
		break;
	default:
		*value = 0;
	}
	return 0;
}

/* The first fields of cudaDeviceProp; the rest stays as NCCL had it. */
struct properties {
	char name[256];
	unsigned char uuid[16];
	char luid[8];
	unsigned luid_mask;
	size_t memory_bytes;
	size_t shared_bytes;
	int registers, warp_size;
	size_t pitch;
	int block_threads, block[3], grid[3], clock;
	size_t constant_bytes;
	int major, minor;
};

static int get_properties(struct properties *out, int device)
{
	(void)device;
	memset(out, 0, sizeof(*out));
	strcpy(out->name, "emulated");
	out->memory_bytes = MEMORY_BYTES;
	out->warp_size = 32;
	out->major = EMU_CAPABILITY_MAJOR;
	out->minor = EMU_CAPABILITY_MINOR;
	return 0;
}

static int can_access_peer(int *can, int device, int peer)
{
	(void)device, (void)peer;
	*can = 0;
	return 0;
}

static int accept_limit(int limit, size_t value)
{
	(void)limit, (void)value;
	return 0;
}

static int synchronize_device(void)
{
	emu_stream_wait_all();
	return 0;
}

/* ---- streams ---- */

static int create_stream(void **out, unsigned flags)
{
	(void)flags;
	*out = emu_stream_new();
	return *out == NULL ? EMU_CUDA_MEMORY : 0;
}

static int create_stream_priority(void **out, unsigned flags, int priority)
{
	(void)priority;
	return create_stream(out, flags);
}

static int destroy_stream(void *stream)
{
	if ((uintptr_t)stream > 2)
		emu_stream_drop(stream);
	return 0;
}

static int synchronize_stream(void *stream)
{
	return emu_stream_wait(emu_stream_of(stream));
}

static int query_stream(void *stream)
{
	return emu_stream_idle(emu_stream_of(stream)) ? 0 : EMU_CUDA_NOT_READY;
}

static int get_stream_id(void *stream, unsigned long long *id)
{
	*id = emu_stream_id(emu_stream_of(stream));
	return 0;
}

/* No stream is ever captured; what else the call would return counts only for captured ones. */
static int get_capture(void *stream, int *status)
{
	(void)stream;
	*status = 0;
	return 0;
}

static int exchange_capture_mode(int *mode)
{
	(void)mode;
	return 0;
}

/* ---- events ---- */

static int create_event_flags(void **out, unsigned flags)
{
	(void)flags;
	*out = emu_event_new();
	return *out == NULL ? EMU_CUDA_MEMORY : 0;
}

static int create_event(void **out)
{
	return create_event_flags(out, 0);
}

static int destroy_event(void *event)
{
	emu_event_drop(event);
	return 0;
}

static int record_event(void *event, void *stream)
{
	emu_event_record(event, emu_stream_of(stream));
	return 0;
}

static int query_event(void *event)
{
	return emu_event_done(event) ? 0 : EMU_CUDA_NOT_READY;
}

static int synchronize_event(void *event)
{
	emu_event_wait(event);
	return 0;
}

static int wait_event(void *stream, void *event, unsigned flags)
{
	(void)flags;
	return emu_event_gate(event, emu_stream_of(stream));
}

/* ---- functions and errors ---- */

/* cudaFuncAttributes without its reserved end: a kernel of an emulated device needs nothing. */
static int get_function_attributes(void *out, const void *function)
{
	enum { NAMED_FIELDS = 76 };

	(void)function;
	memset(out, 0, NAMED_FIELDS);
	return 0;
}

static int set_function_attribute(const void *function, int attribute, int value)
{
	(void)function, (void)attribute, (void)value;
	return 0;
}

static int get_function(void **out, const void *symbol)
{
	*out = (void *)(uintptr_t)symbol;
	return 0;
}

static int last_error(void)
{
	return 0;
}

static const char *error_string(int error)
{
	switch (error) {
	case 0:
		return "no error";
	case EMU_CUDA_NOT_SUPPORTED:
		return "not supported by the emulated device";
	case EMU_CUDA_MEMORY:
		return "out of memory";
	case EMU_CUDA_LAUNCH_FAILED:
		return "the emulated device cannot run this kernel";
	default:
		return "error of the emulated device";
	}
}

static int get_driver_function(const char *symbol, emu_function *out, unsigned long long flags, int *status)
{
	(void)flags;
	*out = emu_driver_function(symbol);
	if (status != NULL)
		*status = 0;
	return 0;
}

static int get_driver_function_version(const char *symbol, emu_function *out, unsigned version,
				       unsigned long long flags, int *status)
{
	(void)version;
	return get_driver_function(symbol, out, flags, status);
}

#define ANSWER(name, function)                 \
	{                                      \
		name, (emu_function)(function) \
	}
const struct emu_answer emu_runtime_answers[] = {
	ANSWER("cudaGetDevice", get_device),
	ANSWER("cudaSetDevice", set_device),
	ANSWER("cudaGetDeviceCount", get_device_count),
	ANSWER("cudaDriverGetVersion", get_version),
	ANSWER("cudaRuntimeGetVersion", get_version),
	ANSWER("cudaDeviceGetPCIBusId", get_bus_id),
	ANSWER("cudaDeviceGetByPCIBusId", get_by_bus_id),
	ANSWER("cudaDeviceGetAttribute", get_attribute),
	ANSWER("cudaGetDeviceProperties", get_properties),
	ANSWER("cudaGetDeviceProperties_v2", get_properties),
	ANSWER("cudaDeviceCanAccessPeer", can_access_peer),
	ANSWER("cudaDeviceSetLimit", accept_limit),
	ANSWER("cudaDeviceSynchronize", synchronize_device),
	ANSWER("cudaStreamCreateWithFlags", create_stream),
	ANSWER("cudaStreamCreateWithPriority", create_stream_priority),
	ANSWER("cudaStreamDestroy", destroy_stream),
	ANSWER("cudaStreamSynchronize", synchronize_stream),
	ANSWER("cudaStreamQuery", query_stream),
	ANSWER("cudaStreamGetId", get_stream_id),
	ANSWER("cudaStreamIsCapturing", get_capture),
	ANSWER("cudaStreamGetCaptureInfo", get_capture),
	ANSWER("cudaStreamGetCaptureInfo_v2", get_capture),
	ANSWER("cudaStreamGetCaptureInfo_v3", get_capture),
	ANSWER("cudaThreadExchangeStreamCaptureMode", exchange_capture_mode),
	ANSWER("cudaStreamWaitEvent", wait_event),
	ANSWER("cudaEventCreate", create_event),
	ANSWER("cudaEventCreateWithFlags", create_event_flags),
	ANSWER("cudaEventDestroy", destroy_event),
	ANSWER("cudaEventRecord", record_event),
	ANSWER("cudaEventQuery", query_event),
	ANSWER("cudaEventSynchronize", synchronize_event),
	ANSWER("cudaMalloc", emu_malloc),
	ANSWER("cudaFree", emu_free),
	ANSWER("cudaHostAlloc", emu_host_alloc),
	ANSWER("cudaFreeHost", emu_free),
	ANSWER("cudaMallocFromPoolAsync", emu_malloc_async),
	ANSWER("cudaFreeAsync", emu_free_async),
	ANSWER("cudaHostRegister", emu_host_register),
	ANSWER("cudaHostUnregister", emu_host_unregister),
	ANSWER("cudaHostGetDevicePointer", emu_host_device_pointer),
	ANSWER("cudaPointerGetAttributes", emu_pointer_attributes),
	ANSWER("cudaMemcpy", emu_memcpy),
	ANSWER("cudaMemset", emu_memset),
	ANSWER("cudaMemcpyAsync", emu_memcpy_async),
	ANSWER("cudaMemsetAsync", emu_memset_async),
	ANSWER("cudaMemPoolCreate", accept_limit),
	ANSWER("cudaMemPoolDestroy", accept_limit),
	ANSWER("cudaMemPoolSetAttribute", accept_limit),
	ANSWER("cudaLaunchKernel", emu_launch_kernel),
	ANSWER("cudaLaunchKernelExC", emu_launch_kernel_config),
	ANSWER("cudaLaunchHostFunc", emu_launch_host_function),
	ANSWER("cudaFuncGetAttributes", get_function_attributes),
	ANSWER("cudaFuncSetAttribute", set_function_attribute),
	ANSWER("cudaGetFuncBySymbol", get_function),
	ANSWER("cudaGetLastError", last_error),
	ANSWER("cudaPeekAtLastError", last_error),
	ANSWER("cudaGetErrorString", error_string),
	ANSWER("cudaGetDriverEntryPoint", get_driver_function),
	ANSWER("cudaGetDriverEntryPointByVersion", get_driver_function_version),
};
const size_t emu_runtime_answer_count = sizeof(emu_runtime_answers) / sizeof(emu_runtime_answers[0]);
