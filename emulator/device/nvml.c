/* SPDX-License-Identifier: MIT
 *
 * NCCL's wrappers of NVML, with their arguments; each returns an ncclResult_t. There is one device: handle 1, index 0.
 * A wrapper must write its result: NCCL drops a GPU whose index it does not learn.
 */
#include <stdint.h>
#include <string.h>

#include "device/answers.h"
#include "device/topology.h"

enum { SUCCESS = 0, SYSTEM_ERROR = 2 };

#define HANDLE ((void *)1)

static int initialize(void)
{
	return SUCCESS;
}

static int handle_by_bus(const char *bus_id, void **handle)
{
	(void)bus_id;
	*handle = HANDLE;
	return SUCCESS;
}

static int handle_by_index(unsigned index, void **handle)
{
	(void)index;
	*handle = HANDLE;
	return SUCCESS;
}

static int index_of(void *handle, unsigned *index)
{
	(void)handle;
	*index = 0;
	return SUCCESS;
}

static int count(unsigned *devices)
{
	*devices = 1;
	return SUCCESS;
}

static int capability(void *handle, int *major, int *minor)
{
	(void)handle;
	*major = EMU_CAPABILITY_MAJOR;
	*minor = EMU_CAPABILITY_MINOR;
	return SUCCESS;
}

/* No NVLink: every state and every capability is 0. */
static int link_state(void *handle, unsigned link, int *state)
{
	(void)handle, (void)link;
	*state = 0;
	return SUCCESS;
}

static int link_capability(void *handle, unsigned link, int which, unsigned *value)
{
	(void)handle, (void)link, (void)which;
	*value = 0;
	return SUCCESS;
}

static int peer_status(void *one, void *other, int which, int *status)
{
	enum { NOT_SUPPORTED = 5 };

	(void)one, (void)other, (void)which;
	*status = NOT_SUPPORTED;
	return SUCCESS;
}

/* No confidential computing: two bools. */
static int confidential(unsigned char *status)
{
	memset(status, 0, 2);
	return SUCCESS;
}

static int driver_version(char *text, unsigned size)
{
	strncpy(text, "535.0", size);
	return SUCCESS;
}

static int link_speed(void *handle, int *mbps)
{
	(void)handle;
	*mbps = 16000;
	return SUCCESS;
}

static int link_width(void *handle, unsigned *lanes)
{
	(void)handle;
	*lanes = 16;
	return SUCCESS;
}

static int link_generation(void *handle, unsigned *generation)
{
	(void)handle;
	*generation = 4;
	return SUCCESS;
}

int emu_absent(void)
{
	return SYSTEM_ERROR;
}

#define ANSWER(name, function)                 \
	{                                      \
		name, (emu_function)(function) \
	}
const struct emu_answer emu_nvml_answers[] = {
	ANSWER("EnsureInitialized", initialize),
	ANSWER("DeviceGetHandleByPciBusId", handle_by_bus),
	ANSWER("DeviceGetHandleByIndex", handle_by_index),
	ANSWER("DeviceGetIndex", index_of),
	ANSWER("DeviceGetCount", count),
	ANSWER("DeviceGetCudaComputeCapability", capability),
	ANSWER("DeviceGetNvLinkState", link_state),
	ANSWER("DeviceGetNvLinkCapability", link_capability),
	ANSWER("DeviceGetP2PStatus", peer_status),
	ANSWER("GetCCStatus", confidential),
	ANSWER("SystemGetDriverVersion", driver_version),
	ANSWER("DeviceGetPcieLinkMaxSpeed", link_speed),
	ANSWER("DeviceGetCurrPcieLinkWidth", link_width),
	ANSWER("DeviceGetCurrPcieLinkGeneration", link_generation),
};
const size_t emu_nvml_answer_count = sizeof(emu_nvml_answers) / sizeof(emu_nvml_answers[0]);
