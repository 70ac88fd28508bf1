/* SPDX-License-Identifier: MIT
 *
 * Messages as events of NCCL's profiler plugins (NCCL_PROFILER_PLUGIN), from NCCL 2.28 on (net API v11): from the post
 * to the test that completes it, below NCCL's own event of the step that posted it. One that a close or an abort leaves
 * has no end, as with NCCL's own networks. The form is that of NCCL's Socket transport, which profilers know. There is
 * one event a message, not one a slice: NVIDIA's example has room for a few in each step.
 *
 * NCCL takes every call, and drops it where no profiler is loaded or none wants network events. On the thread that
 * posts and tests; never after the request is complete, when NCCL's step may be gone.
 *
 * NCCL 2.27 has the callback as well, but reads a pointer there that it has set only where the profiler wants steps
 * (src/plugin/profiler.cc, ncclProfilerCallback); 2.26 names another step than the message's.
 */
#ifndef BNET_PROFILE_H
#define BNET_PROFILE_H

#include <stddef.h>

#include "transport/conn.h"

/* step: NCCL's, as it came with the message; NULL: there is no event. length: as posted. */
void bnet_profile_begin(struct bnet_request *request, void *step, size_t length);
/* The message is complete, or has failed. */
void bnet_profile_end(struct bnet_request *request);

#endif
