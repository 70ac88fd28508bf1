/* SPDX-License-Identifier: MIT
 *
 * CUDA's driver, as far as NCCL asks for it by cudaGetDriverEntryPoint.
 */
#include <stdint.h>
#include <string.h>

#include "device/answers.h"
#include "device/error.h"
#include "device/launch.h"

static int absent(void)
{
	emu_problem_set("NCCL called a function of CUDA's driver that the emulated device does not have.");
	return EMU_CUDA_NOT_SUPPORTED;
}

static int get_error_text(int error, const char **text)
{
	(void)error;
	*text = "error of the emulated device";
	return 0;
}

static int get_device(int *device, int ordinal)
{
	(void)ordinal;
	*device = 0;
	return 0;
}

static int get_current_device(int *device)
{
	*device = 0;
	return 0;
}

/* Every optional capability is absent. */
static int get_attribute(int *value, int attribute, int device)
{
	(void)attribute, (void)device;
	*value = 0;
	return 0;
}

/* NCCL distinguishes GPUs of a host by this; all of ours have one bus and one host each. */
static int get_uuid(unsigned char *uuid, int device)
{
	(void)device;
	memset(uuid, 0, 16);
	return 0;
}

static int get_context(void **context)
{
	*context = (void *)1;
	return 0;
}

static int accept_context(void *context)
{
	(void)context;
	return 0;
}

static int create_context(void **context)
{
	return get_context(context);
}

static int get_pointer_attribute(void *value, int attribute, uintptr_t pointer)
{
	enum { MEMORY_TYPE = 2, DEVICE_ORDINAL = 9, DEVICE_MEMORY = 2 };

	(void)pointer;
	if (attribute == MEMORY_TYPE)
		*(unsigned *)value = DEVICE_MEMORY;
	else if (attribute == DEVICE_ORDINAL)
		*(int *)value = 0;
	else
		return EMU_CUDA_NOT_SUPPORTED;
	return 0;
}

#define ANSWER(name, function)                 \
	{                                      \
		name, (emu_function)(function) \
	}
static const struct emu_answer answers[] = {
	ANSWER("cuGetErrorString", get_error_text),
	ANSWER("cuGetErrorName", get_error_text),
	ANSWER("cuDeviceGet", get_device),
	ANSWER("cuDeviceGetAttribute", get_attribute),
	ANSWER("cuDeviceGetUuid", get_uuid),
	ANSWER("cuCtxGetDevice", get_current_device),
	ANSWER("cuCtxGetCurrent", get_context),
	ANSWER("cuCtxSetCurrent", accept_context),
	ANSWER("cuCtxCreate", create_context),
	ANSWER("cuCtxDestroy", accept_context),
	ANSWER("cuPointerGetAttribute", get_pointer_attribute),
	ANSWER("cuLaunchKernel", emu_cu_launch),
	ANSWER("cuLaunchKernelEx", emu_cu_launch_config),
};

emu_function emu_driver_function(const char *name)
{
	for (size_t i = 0; i < sizeof(answers) / sizeof(answers[0]); i++)
		if (strcmp(answers[i].name, name) == 0)
			return answers[i].function;
	return (emu_function)absent;
}
