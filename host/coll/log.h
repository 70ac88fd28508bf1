/* SPDX-License-Identifier: MIT
 *
 * The logger that the collectives give to a network, and the warnings that it has logged: NCCL's result code only
 * classifies an error, a warning gives the reason. Any thread may call everything here.
 */
#ifndef BNET_COLL_LOG_H
#define BNET_COLL_LOG_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#include "common/abi.h"

/* An ncclDebugLogger_t. stderr gets what NCCL_DEBUG asks for, stdout nothing. */
void bnet_coll_logger(ncclDebugLogLevel level, unsigned long flags, const char *file, int line, const char *fmt, ...)
	__attribute__((format(printf, 5, 6)));
/* Writes a line to stderr, once: what changes a job although nothing fails. */
void bnet_coll_tell(atomic_bool *told, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Drops this thread's warnings, or no longer: for calls that may fail in normal operation. */
void bnet_coll_mute(bool mute);
/* The number of warnings in this process until now. An operation of this thread begins here. */
unsigned bnet_coll_warnings(void);
/* Copies this thread's warnings after number `since`, joined, as many as fit; if it has none, the last one of any
 * thread; "" if no thread has one. */
void bnet_coll_last_warning(unsigned since, char *out, size_t size);

#endif
