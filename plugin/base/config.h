/* SPDX-License-Identifier: MIT
 *
 * The parameters of config.def, read from the environment once, before the first connection. Any thread, as long as no
 * thread changes the environment meanwhile.
 */
#ifndef BNET_CONFIG_H
#define BNET_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct bnet_ports {
	uint16_t first; /* 0: any */
	uint16_t last;
};

#define BNET_WORD 16   /* bytes of a name with its terminator: the kernel's TCP_CA_NAME_MAX */
#define BNET_NAMES 256 /* bytes of a list of names with its terminator: BNET_MAX_NICS names */
#define BNET_PREFIXES 256
#define BNET_FILE_PATH 192

struct bnet_config {
#define INT(field, name, deflt, min, max, help) int64_t field;
#define BYTES(field, name, deflt, min, max, help) int64_t field;
#define PORTS(field, name, deflt, help) struct bnet_ports field;
#define WORD(field, name, deflt, help) char field[BNET_WORD];
#define NAMES(field, name, deflt, help) char field[BNET_NAMES];
#define PREFIXES(field, name, deflt, help) char field[BNET_PREFIXES];
#define PATH(field, name, deflt, help) char field[BNET_FILE_PATH];
#include "base/config.def"
#undef INT
#undef BYTES
#undef PORTS
#undef WORD
#undef NAMES
#undef PREFIXES
#undef PATH
};

enum bnet_config_kind {
	BNET_KIND_INT,
	BNET_KIND_BYTES,
	BNET_KIND_PORTS,
	BNET_KIND_WORD,
	BNET_KIND_NAMES,
	BNET_KIND_PREFIXES,
	BNET_KIND_FILE_PATH,
};

struct bnet_config_row {
	const char *name;
	enum bnet_config_kind kind;
	size_t offset; /* in struct bnet_config */
	const char *deflt;
	int64_t min, max; /* of BNET_KIND_INT and BNET_KIND_BYTES */
	const char *help;
};

#define BNET_CONFIG_TEXT 256 /* holds every formatted value and range */
#define BNET_CONFIG_LINE 256 /* holds every error line */

extern const struct bnet_config_row bnet_config_rows[];
extern const int bnet_config_row_count;

void bnet_config_defaults(struct bnet_config *out);

/* Reads every parameter through getenv. 0, or -EINVAL with one line in err (the variable, its value, the range) for
 * the first invalid one; out holds the default of each invalid one. Slice sizes are rounded up to multiples of 4 KiB,
 * and the smallest does not exceed the largest. err may be NULL if err_size is 0. */
int bnet_config_read(struct bnet_config *out, char *err, size_t err_size);

/* The same check for one row: 0, or -EINVAL with a line in err. */
int bnet_config_check(int row, char *err, size_t err_size);

/* The BAGUA_NET_… variables of this environment that neither a row nor another part of the package defines, such as
 * misspelt ones, have numbers from 0. -EINVAL: this number is one, and one line in err names it and the row that was
 * probably meant; *grave: that row would protect what the job sends. 0: there are no more. */
int bnet_config_unknown(int number, bool *grave, char *err, size_t err_size);

/* Formats a row's value in config, and its range, as a user would write them ("64K", "1 … 64"). text:
 * BNET_CONFIG_TEXT bytes. */
void bnet_config_format(const struct bnet_config_row *row, const struct bnet_config *config, char *text);
void bnet_config_range(const struct bnet_config_row *row, char *text);

/* The parsers. Pure; 0 or -EINVAL. Numbers are decimal digits without spaces or trailing text; only bnet_parse_int
 * takes a sign, and only a minus. */
int bnet_parse_int(const char *text, int64_t *out);
/* Also takes one suffix K, M or G, in either case. */
int bnet_parse_bytes(const char *text, int64_t *out);
/* "FIRST-LAST" in 1 … 65535, or "0". */
int bnet_parse_ports(const char *text, struct bnet_ports *out);
/* Fewer than BNET_WORD letters, digits, - and _, or an empty text. Pads out with zeroes. */
int bnet_parse_word(const char *text, char out[BNET_WORD]);
/* Comma-separated names of letters, digits, -, _ and dots, or an empty text. Pads out with zeroes. */
int bnet_parse_names(const char *text, char out[BNET_NAMES]);
/* A list as in prefix.h, or an empty text. Pads out with zeroes. -ERANGE: it is too long. */
int bnet_parse_prefixes(const char *text, char out[BNET_PREFIXES]);
/* An absolute path, or an empty text. Pads out with zeroes. */
int bnet_parse_file_path(const char *text, char out[BNET_FILE_PATH]);

#endif
