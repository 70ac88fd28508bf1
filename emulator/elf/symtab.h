/* SPDX-License-Identifier: MIT
 *
 * The local symbols of a shared library: those in .symtab, which the dynamic linker does not offer. Reads a file's
 * bytes only; a damaged file gives fewer symbols, never a read outside the image. Any thread.
 */
#ifndef EMU_SYMTAB_H
#define EMU_SYMTAB_H

#include <stddef.h>
#include <stdint.h>

struct emu_symtab {
	const char *image; /* mapped by emu_symtab_open */
	size_t size;
	const char *symbols;
	size_t count;
	const char *names;
	size_t names_size;
};

struct emu_symbol {
	const char *name;
	uint64_t offset; /* from the library's load address */
	uint64_t size;
};

/* Of e_machine: this machine. */
#ifdef __aarch64__
#define EMU_MACHINE EM_AARCH64
#else
#define EMU_MACHINE EM_X86_64
#endif

/* Finds the symbols of an ELF image for this machine. 0; -ENOEXEC: no such image; -ENODATA: the library has been
 * stripped. */
int emu_symtab_parse(struct emu_symtab *table, const void *image, size_t size);
/* The same for a file; -errno if it cannot be read. emu_symtab_close ends it and all names. */
int emu_symtab_open(struct emu_symtab *table, const char *path);
void emu_symtab_close(struct emu_symtab *table);

/* Symbol i < count; its name is "" where it defines nothing. */
struct emu_symbol emu_symtab_at(const struct emu_symtab *table, size_t i);
/* The symbol with the name; its name is NULL if the table has none. */
struct emu_symbol emu_symtab_find(const struct emu_symtab *table, const char *name);

#endif
