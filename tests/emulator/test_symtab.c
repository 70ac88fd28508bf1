/* SPDX-License-Identifier: MIT
 *
 * Local symbols are found in a library and in this program; damaged images give an error or fewer symbols.
 */
#include "elf/symtab.h"

#include <elf.h>
#include <errno.h>

#include "check.h"

/* A library with one symbol: header, two sections' bytes, then three section headers. */
struct image {
	Elf64_Ehdr head;
	Elf64_Sym symbols[2];
	char names[16];
	Elf64_Shdr sections[3];
};

static struct image library(void)
{
	struct image image = {
		.head = {.e_type = ET_DYN,
			 .e_machine = EMU_MACHINE,
			 .e_shoff = offsetof(struct image, sections),
			 .e_shentsize = sizeof(Elf64_Shdr),
			 .e_shnum = 3},
		.symbols = {{0}, {.st_name = 1, .st_shndx = 1, .st_value = 0x40, .st_size = 24}},
		.names = "\0cudaMalloc",
		.sections = {{0},
			     {.sh_type = SHT_SYMTAB,
			      .sh_link = 2,
			      .sh_offset = offsetof(struct image, symbols),
			      .sh_size = sizeof(image.symbols)},
			     {.sh_type = SHT_STRTAB,
			      .sh_offset = offsetof(struct image, names),
			      .sh_size = sizeof(image.names)}},
	};

	memcpy(image.head.e_ident, ELFMAG, SELFMAG);
	image.head.e_ident[EI_CLASS] = ELFCLASS64;
	image.head.e_ident[EI_DATA] = ELFDATA2LSB;
	return image;
}

static int parse(const struct image *image, struct emu_symtab *table)
{
	return emu_symtab_parse(table, image, sizeof(*image));
}

static void finds_a_symbol(void)
{
	const struct image image = library();
	struct emu_symtab table;
	struct emu_symbol found;

	check_int(parse(&image, &table), 0);
	check_int(table.count, 2);
	found = emu_symtab_find(&table, "cudaMalloc");
	check_str(found.name, "cudaMalloc");
	check_int(found.offset, 0x40);
	check_int(found.size, 24);
	check(emu_symtab_find(&table, "cudaFree").name == NULL);
	check_str(emu_symtab_at(&table, 0).name, "");
}

static void refuses_what_is_no_library(void)
{
	struct emu_symtab table;
	struct image image = library();

	check_int(emu_symtab_parse(&table, "#!/bin/sh", 9), -ENOEXEC);
	image.head.e_ident[EI_CLASS] = ELFCLASS32;
	check_int(parse(&image, &table), -ENOEXEC);
	image = library();
	image.head.e_type = ET_EXEC;
	check_int(parse(&image, &table), -ENOEXEC);
	image = library();
	image.head.e_machine = EM_RISCV;
	check_int(parse(&image, &table), -ENOEXEC);
}

static void tells_a_stripped_library(void)
{
	struct image image = library();
	struct emu_symtab table;

	image.sections[1].sh_type = SHT_PROGBITS;
	check_int(parse(&image, &table), -ENODATA);
}

static void stays_inside_the_image(void)
{
	struct emu_symtab table;
	struct image image = library();

	image.head.e_shoff = sizeof(image) - 8;
	check_int(parse(&image, &table), -ENOEXEC);
	image = library();
	image.sections[1].sh_size = UINT64_MAX;
	check_int(parse(&image, &table), -ENOEXEC);
	image = library();
	image.sections[1].sh_link = 3;
	check_int(parse(&image, &table), -ENOEXEC);
	image = library();
	image.sections[2].sh_offset = sizeof(image) + 1;
	check_int(parse(&image, &table), -ENOEXEC);
	image = library();
	memset(image.names, 'x', sizeof(image.names)); /* no final zero */
	check_int(parse(&image, &table), -ENOEXEC);
	image = library();
	image.symbols[1].st_name = sizeof(image.names);
	check_int(parse(&image, &table), 0);
	check_str(emu_symtab_at(&table, 1).name, "");
}

static void reports_files(void)
{
	struct emu_symtab table;

	check_int(emu_symtab_open(&table, "/nonexistent/libnccl.so.2"), -ENOENT);
	check_int(emu_symtab_open(&table, "/dev/null"), -ENOEXEC);
	check(emu_symtab_open(&table, "/") < 0);
	emu_symtab_close(&table);
}

int main(void)
{
	finds_a_symbol();
	refuses_what_is_no_library();
	tells_a_stripped_library();
	stays_inside_the_image();
	reports_files();
	return 0;
}
