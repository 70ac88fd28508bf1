/* SPDX-License-Identifier: MIT
 *
 * An emulated GPU for NCCL: loads an unmodified libnccl.so.2 into this process, answers its calls to CUDA and NVML,
 * and plays its kernels on threads. Device memory is the process's own memory, so any buffer may be passed to NCCL.
 * One NCCL per process. No call prints, aborts or throws.
 */
#ifndef BAGUA_NET_EMULATOR_H
#define BAGUA_NET_EMULATOR_H

#include <stddef.h>

#define EMU_API __attribute__((visibility("default")))

/* Loads the NCCL at path. Sets NCCL's variables that an emulated GPU needs, unless they are set; refuses those that
 * bring back what it lacks. The dlopen handle, or NULL with a sentence in error. A second call with the same path
 * returns the same handle. */
EMU_API void *emu_open(const char *path, char *error, size_t size);

/* A cudaStream_t: operations run in the order of their calls, on a thread of the stream. NULL without memory. */
EMU_API void *emu_stream_create(void);
/* Waits for everything on the stream; 0, or a cudaError_t. */
EMU_API int emu_stream_synchronize(void *stream);
/* Has everything on the stream finished? Never waits. */
EMU_API int emu_stream_done(void *stream);
EMU_API void emu_stream_destroy(void *stream);

/* "" or a sentence: the first kernel or CUDA call that the emulation could not answer. */
EMU_API const char *emu_problem(void);

#endif
