/* SPDX-License-Identifier: MIT
 *
 * Redirects a loaded function to another one: its first instructions become a jump. Only before any thread runs it.
 */
#ifndef EMU_REDIRECT_H
#define EMU_REDIRECT_H

#include <stddef.h>

/* The bytes that a jump needs. */
#define EMU_REDIRECT_BYTES 16

/* Every call of the function at entry, which has EMU_REDIRECT_BYTES or more, goes to target from now on. 0 or -errno
 * (-EPERM or -EACCES: the system forbids writable code; -ENOTSUP: no jump is known for this machine). */
int emu_redirect(void *entry, void (*target)(void));

#endif
