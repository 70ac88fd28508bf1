/* SPDX-License-Identifier: MIT
 *
 * The symbols of a library on arbitrary bytes: every name is a string inside the image.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "elf/symtab.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct emu_symtab table;
	size_t total = 0;

	if (emu_symtab_parse(&table, data, size) != 0)
		return 0;
	for (size_t i = 0; i < table.count; i++)
		total += strlen(emu_symtab_at(&table, i).name);
	if (table.count > size || emu_symtab_find(&table, "\x01").name == (const char *)total)
		abort();
	return 0;
}
