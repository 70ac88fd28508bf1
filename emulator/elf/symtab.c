/* SPDX-License-Identifier: MIT
 *
 * Local symbols of a library. Layouts: System V ABI, chapter 4, "Sections" and "Symbol Table".
 */
#include "elf/symtab.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static bool inside(uint64_t offset, uint64_t length, size_t size)
{
	return offset <= size && length <= size - offset;
}

static bool is_library(const Elf64_Ehdr *head, size_t size)
{
	return memcmp(head->e_ident, ELFMAG, SELFMAG) == 0 && head->e_ident[EI_CLASS] == ELFCLASS64 &&
	       head->e_ident[EI_DATA] == ELFDATA2LSB && head->e_type == ET_DYN && head->e_machine == EMU_MACHINE &&
	       head->e_shentsize == sizeof(Elf64_Shdr) &&
	       inside(head->e_shoff, (uint64_t)head->e_shnum * sizeof(Elf64_Shdr), size);
}

static Elf64_Shdr section_at(const char *image, const Elf64_Ehdr *head, size_t i)
{
	Elf64_Shdr section;

	memcpy(&section, image + head->e_shoff + i * sizeof(section), sizeof(section));
	return section;
}

/* Uses the section as symbol table if it and its names lie inside the image. */
static bool use_section(struct emu_symtab *table, const Elf64_Ehdr *head, const Elf64_Shdr *section)
{
	Elf64_Shdr names;

	if (section->sh_link >= head->e_shnum || !inside(section->sh_offset, section->sh_size, table->size))
		return false;
	names = section_at(table->image, head, section->sh_link);
	if (names.sh_type != SHT_STRTAB || names.sh_size == 0 || !inside(names.sh_offset, names.sh_size, table->size) ||
	    table->image[names.sh_offset + names.sh_size - 1] != '\0')
		return false;
	table->symbols = table->image + section->sh_offset;
	table->count = section->sh_size / sizeof(Elf64_Sym);
	table->names = table->image + names.sh_offset;
	table->names_size = names.sh_size;
	return true;
}

int emu_symtab_parse(struct emu_symtab *table, const void *image, size_t size)
{
	Elf64_Ehdr head;

	*table = (struct emu_symtab){.image = image, .size = size};
	if (size < sizeof(head))
		return -ENOEXEC;
	memcpy(&head, image, sizeof(head));
	if (!is_library(&head, size))
		return -ENOEXEC;
	for (size_t i = 0; i < head.e_shnum; i++) {
		const Elf64_Shdr section = section_at(image, &head, i);

		if (section.sh_type == SHT_SYMTAB)
			return use_section(table, &head, &section) ? 0 : -ENOEXEC;
	}
	return -ENODATA;
}

int emu_symtab_open(struct emu_symtab *table, const char *path)
{
	const int fd = open(path, O_RDONLY | O_CLOEXEC);
	struct stat status;
	void *image = MAP_FAILED;
	int error = 0;

	*table = (struct emu_symtab){0};
	if (fd < 0)
		return -errno;
	if (fstat(fd, &status) != 0)
		error = -errno;
	else if (status.st_size == 0)
		error = -ENOEXEC;
	else if ((image = mmap(NULL, (size_t)status.st_size, PROT_READ, MAP_PRIVATE, fd, 0)) == MAP_FAILED)
		error = -errno;
	close(fd);
	if (error == 0)
		error = emu_symtab_parse(table, image, (size_t)status.st_size);
	if (error != 0 && image != MAP_FAILED)
		munmap(image, (size_t)status.st_size);
	return error;
}

void emu_symtab_close(struct emu_symtab *table)
{
	if (table->image != NULL)
		munmap((void *)(uintptr_t)table->image, table->size);
	*table = (struct emu_symtab){0};
}

struct emu_symbol emu_symtab_at(const struct emu_symtab *table, size_t i)
{
	Elf64_Sym symbol;

	memcpy(&symbol, table->symbols + i * sizeof(symbol), sizeof(symbol));
	if (symbol.st_shndx == SHN_UNDEF || symbol.st_name >= table->names_size)
		return (struct emu_symbol){.name = ""};
	return (struct emu_symbol){table->names + symbol.st_name, symbol.st_value, symbol.st_size};
}

struct emu_symbol emu_symtab_find(const struct emu_symtab *table, const char *name)
{
	for (size_t i = 0; i < table->count; i++) {
		const struct emu_symbol symbol = emu_symtab_at(table, i);

		if (strcmp(symbol.name, name) == 0)
			return symbol;
	}
	return (struct emu_symbol){0};
}
