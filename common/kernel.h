/* SPDX-License-Identifier: MIT
 *
 * What glibc has had since 2.25 and 2.27. A compiler's own sysroot, such as conda's, may be older than the
 * system on which the program runs. Any thread; no state.
 */
#ifndef BNET_KERNEL_H
#define BNET_KERNEL_H

#include <fcntl.h>
#include <stddef.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#if defined(__x86_64__)
#define BNET_SYS_GETRANDOM 318
#define BNET_SYS_MEMFD_CREATE 319
#else /* the kernel's generic numbers: aarch64, riscv64, … */
#define BNET_SYS_GETRANDOM 278
#define BNET_SYS_MEMFD_CREATE 279
#endif

#ifndef MFD_CLOEXEC
#define MFD_CLOEXEC 1U
#define MFD_ALLOW_SEALING 2U
#endif
#ifndef F_ADD_SEALS
#define F_ADD_SEALS 1033
#define F_GET_SEALS 1034
#define F_SEAL_SEAL 1
#define F_SEAL_SHRINK 2
#define F_SEAL_GROW 4
#endif

static inline ssize_t bnet_getrandom(void *out, size_t size)
{
	return syscall(BNET_SYS_GETRANDOM, out, size, 0U);
}

/* explicit_bzero: no compiler leaves it out. */
static inline void bnet_wipe(void *memory, size_t size)
{
	memset(memory, 0, size);
	__asm__ volatile("" ::"r"(memory) : "memory");
}

static inline int bnet_memfd_create(const char *name, unsigned flags)
{
	return (int)syscall(BNET_SYS_MEMFD_CREATE, name, flags);
}

#endif
