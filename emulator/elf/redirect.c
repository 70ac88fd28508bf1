/* SPDX-License-Identifier: MIT
 *
 * Overwrites function entries. The register that the jump uses is free at a function's entry: rax holds at most the
 * vector count of a variadic call, and AAPCS64 leaves x16 to such veneers.
 */
#include "elf/redirect.h"

#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#if defined(__x86_64__)
static const unsigned char before[] = {0x48, 0xb8}; /* movabs rax, target */
static const unsigned char after[] = {0xff, 0xe0};  /* jmp rax */
#elif defined(__aarch64__)
static const unsigned char before[] = {0x50, 0x00, 0x00, 0x58,  /* ldr x16, pc + 8 */
				       0x00, 0x02, 0x1f, 0xd6}; /* br x16 */
static const unsigned char after[] = {0};
#else
#define UNKNOWN_MACHINE
static const unsigned char before[] = {0}, after[] = {0};
#endif

int emu_redirect(void *entry, void (*target)(void))
{
	const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), start = (uintptr_t)entry & ~(page - 1);
	const size_t length = (uintptr_t)entry + EMU_REDIRECT_BYTES - start;
	unsigned char jump[sizeof(before) + sizeof(target) + sizeof(after)];

#ifdef UNKNOWN_MACHINE
	return -ENOTSUP;
#endif
	memcpy(jump, before, sizeof(before));
	memcpy(jump + sizeof(before), &target, sizeof(target));
	memcpy(jump + sizeof(before) + sizeof(target), after, sizeof(after));
	if (mprotect((void *)start, length, PROT_READ | PROT_WRITE) != 0)
		return -errno;
	memcpy(entry, jump, sizeof(jump) < EMU_REDIRECT_BYTES ? sizeof(jump) : EMU_REDIRECT_BYTES);
	if (mprotect((void *)start, length, PROT_READ | PROT_EXEC) != 0)
		return -errno;
	__builtin___clear_cache((char *)entry, (char *)entry + EMU_REDIRECT_BYTES);
	return 0;
}
