/* SPDX-License-Identifier: MIT
 *
 * CUDA's error codes that the emulated device gives (cuda.h, cudaError_enum), and the sentence about the first thing
 * that it could not do. Any thread.
 */
#ifndef EMU_ERROR_H
#define EMU_ERROR_H

enum {
	EMU_CUDA_INVALID = 1,
	EMU_CUDA_MEMORY = 2,
	EMU_CUDA_NOT_READY = 600,
	EMU_CUDA_LAUNCH_FAILED = 719,
	EMU_CUDA_NOT_SUPPORTED = 801
};

/* Keeps the sentence if it is the first. */
void emu_problem_set(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* The sentence, or "". */
const char *emu_problem_text(void);

#endif
