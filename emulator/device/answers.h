/* SPDX-License-Identifier: MIT
 *
 * What the emulated device answers to CUDA's runtime, to its driver, and to NCCL's wrappers of NVML.
 */
#ifndef EMU_ANSWERS_H
#define EMU_ANSWERS_H

#include <stddef.h>

typedef void (*emu_function)(void);

struct emu_answer {
	const char *name; /* of the function that it replaces */
	emu_function function;
};

/* Functions of CUDA's runtime, by their names in the library. */
extern const struct emu_answer emu_runtime_answers[];
extern const size_t emu_runtime_answer_count;

/* NCCL's own wrappers of NVML ("DeviceGetIndex" of ncclNvmlDeviceGetIndex). */
extern const struct emu_answer emu_nvml_answers[];
extern const size_t emu_nvml_answer_count;
/* For a function of NCCL's that needs a driver and is not in the table: NCCL goes on without it. */
int emu_absent(void);

/* A function of the driver, for cudaGetDriverEntryPoint; one that is unknown returns CUDA_ERROR_NOT_SUPPORTED. */
emu_function emu_driver_function(const char *name);

#endif
