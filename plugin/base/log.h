/* SPDX-License-Identifier: MIT
 *
 * Messages go to the logger that NCCL passed to init, and a few also to stderr: never to stdout, and nowhere before
 * init. Any thread. A message is one line without a newline.
 */
#ifndef BNET_LOG_H
#define BNET_LOG_H

#include <stdatomic.h>

#include "common/abi.h"

#ifdef __FILE_NAME__
#define BNET_FILE __FILE_NAME__
#else /* gcc before 12 */
#define BNET_FILE __FILE__
#endif

/* NULL silences the log. Every init passes a logger; the last one is used. */
void bnet_log_set(ncclDebugLogger_t logger);

/* Truncated at 1023 bytes. Control characters become spaces: a peer may have sent them. Preserves errno. */
__attribute__((format(printf, 5, 6))) void bnet_log(ncclDebugLogLevel level, unsigned long subsys, const char *file,
						    int line, const char *fmt, ...);
__attribute__((format(printf, 5, 6))) void bnet_log_visibly(atomic_bool *told, unsigned long subsys, const char *file,
							    int line, const char *fmt, ...);

/* The logger and stderr may block, as on a pipe that nobody reads, while others need the engine's lock. So the messages of the
 * thread that has it wait: hold right after it is taken, also again by a wait; release right before it is left, and
 * what that returns (NULL: nothing) is passed on after. */
struct bnet_held;
void bnet_log_hold(void);
struct bnet_held *bnet_log_release(void);
void bnet_log_pass_on(struct bnet_held *held);
/* In a forked child: other threads' messages do not come any more. */
struct bnet_held *bnet_log_release_in_child(void);

/* A caller that gets an error often ends the process at once, so the reason must be logged by then. A thread that
 * publishes an error before it logs the reason calls owe before, and owe_no_more after. */
void bnet_log_owe(void);
void bnet_log_owe_no_more(void);
/* Waits for what is owed or held, but not for a logger that blocks. Without the lock. */
void bnet_log_settle(void);

/* For conditions that a person should act on. */
#define bnet_warn(...) bnet_log(NCCL_LOG_WARN, NCCL_ALL, BNET_FILE, __LINE__, __VA_ARGS__)
/* The subsystem of such a warning, by which a caller may know that nothing has failed. */
#define BNET_WAITS NCCL_NET
/* The same for what costs a user minutes while nothing fails: once for each place in the code it also goes to stderr,
 * unless NCCL_DEBUG lets the logger show warnings. */
#define bnet_warn_visibly(...)                                                         \
	do {                                                                           \
		static atomic_bool told;                                               \
		bnet_log_visibly(&told, BNET_WAITS, BNET_FILE, __LINE__, __VA_ARGS__); \
	} while (0)
/* … for a cause of failures, which others may see first. */
#define bnet_warn_of_cause(...)                                                      \
	do {                                                                         \
		static atomic_bool told;                                             \
		bnet_log_visibly(&told, NCCL_ALL, BNET_FILE, __LINE__, __VA_ARGS__); \
	} while (0)
/* Shown by NCCL_DEBUG=INFO together with NCCL's own lines of that subsystem (NCCL_INIT, NCCL_NET). */
#define bnet_info(subsys, ...) bnet_log(NCCL_LOG_INFO, (subsys), BNET_FILE, __LINE__, __VA_ARGS__)
/* Shown by NCCL_DEBUG=TRACE in an NCCL built with tracing. */
#define bnet_trace(...) bnet_log(NCCL_LOG_TRACE, NCCL_NET, BNET_FILE, __LINE__, __VA_ARGS__)

#endif
