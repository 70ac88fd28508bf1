/* SPDX-License-Identifier: MIT
 *
 * The parameters: the rows of config.def as data, the parsers of their values, and the reader of the environment. Any
 * thread, as long as no thread changes the environment meanwhile.
 */
#include "base/config.h"

#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/prefix.h"

#define PREFIX "BAGUA_NET_"
#define NAME_SIZE 64
#define SLICE_UNIT 4096
#define PREFIXES_EXAMPLE "10.0.0.0/8,fd00::/8"

const struct bnet_config_row bnet_config_rows[] = {
#define INT(field, name, deflt, min, max, help) \
	{name, BNET_KIND_INT, offsetof(struct bnet_config, field), #deflt, min, max, help},
#define BYTES(field, name, deflt, min, max, help) \
	{name, BNET_KIND_BYTES, offsetof(struct bnet_config, field), #deflt, min, max, help},
#define PORTS(field, name, deflt, help) {name, BNET_KIND_PORTS, offsetof(struct bnet_config, field), deflt, 0, 0, help},
#define WORD(field, name, deflt, help) {name, BNET_KIND_WORD, offsetof(struct bnet_config, field), deflt, 0, 0, help},
#define NAMES(field, name, deflt, help) {name, BNET_KIND_NAMES, offsetof(struct bnet_config, field), deflt, 0, 0, help},
#define PREFIXES(field, name, deflt, help) \
	{name, BNET_KIND_PREFIXES, offsetof(struct bnet_config, field), deflt, 0, 0, help},
#define PATH(field, name, deflt, help) \
	{name, BNET_KIND_FILE_PATH, offsetof(struct bnet_config, field), deflt, 0, 0, help},
#include "base/config.def"
#undef INT
#undef BYTES
#undef PORTS
#undef WORD
#undef NAMES
#undef PREFIXES
#undef PATH
};
const int bnet_config_row_count = sizeof(bnet_config_rows) / sizeof(bnet_config_rows[0]);

/* Variables of the Python package, the benchmarks and the tests. */
static const char *const other_prefixes[] = {PREFIX "BENCH_", PREFIX "TEST_"};

/* ---- parsers ---- */

/* Reads all leading digits, at least one. Leaves *text after the last digit. */
static int parse_digits(const char **text, int64_t *out)
{
	const char *p = *text;
	int64_t value = 0;

	if (*p < '0' || *p > '9')
		return -EINVAL;
	for (; *p >= '0' && *p <= '9'; p++) {
		if (__builtin_mul_overflow(value, 10, &value) || __builtin_add_overflow(value, *p - '0', &value))
			return -EINVAL;
	}
	*text = p;
	*out = value;
	return 0;
}

int bnet_parse_int(const char *text, int64_t *out)
{
	int64_t value;
	bool negative = *text == '-';

	text += negative;
	if (parse_digits(&text, &value) || *text)
		return -EINVAL;
	*out = negative ? -value : value;
	return 0;
}

static int64_t suffix_factor(char suffix)
{
	switch (suffix) {
	case 'k':
	case 'K':
		return INT64_C(1) << 10;
	case 'm':
	case 'M':
		return INT64_C(1) << 20;
	case 'g':
	case 'G':
		return INT64_C(1) << 30;
	default:
		return 0;
	}
}

int bnet_parse_bytes(const char *text, int64_t *out)
{
	int64_t value, factor = 1;

	if (parse_digits(&text, &value))
		return -EINVAL;
	if (*text)
		factor = suffix_factor(*text++);
	if (!factor || (factor > 1 && *text) || __builtin_mul_overflow(value, factor, &value))
		return -EINVAL;
	*out = value;
	return 0;
}

int bnet_parse_ports(const char *text, struct bnet_ports *out)
{
	int64_t first, last;

	if (strcmp(text, "0") == 0) {
		*out = (struct bnet_ports){0, 0};
		return 0;
	}
	if (parse_digits(&text, &first) || *text++ != '-' || parse_digits(&text, &last) || *text)
		return -EINVAL;
	if (first < 1 || last < first || last > UINT16_MAX)
		return -EINVAL;
	*out = (struct bnet_ports){(uint16_t)first, (uint16_t)last};
	return 0;
}

/* Not isalnum: that depends on the host program's locale. */
static bool is_word_character(char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
}

int bnet_parse_word(const char *text, char out[BNET_WORD])
{
	size_t len = strnlen(text, BNET_WORD);

	if (len == BNET_WORD)
		return -EINVAL;
	for (size_t i = 0; i < len; i++)
		if (!is_word_character(text[i]))
			return -EINVAL;
	memset(out, 0, BNET_WORD);
	memcpy(out, text, len);
	return 0;
}

int bnet_parse_names(const char *text, char out[BNET_NAMES])
{
	size_t len = strnlen(text, BNET_NAMES), name = 0;

	if (len == BNET_NAMES)
		return -EINVAL;
	for (size_t i = 0; i <= len && len; i++) {
		bool ends = text[i] == ',' || !text[i];

		if (ends ? name == 0 : name == BNET_WORD - 1 || !(is_word_character(text[i]) || text[i] == '.'))
			return -EINVAL;
		name = ends ? 0 : name + 1;
	}
	memset(out, 0, BNET_NAMES);
	memcpy(out, text, len);
	return 0;
}

int bnet_parse_prefixes(const char *text, char out[BNET_PREFIXES])
{
	size_t len = strnlen(text, BNET_PREFIXES), bad;

	if (bnet_prefixes_bad(text, &bad))
		return -EINVAL;
	if (len == BNET_PREFIXES)
		return -ERANGE;
	memset(out, 0, BNET_PREFIXES);
	memcpy(out, text, len);
	return 0;
}

int bnet_parse_file_path(const char *text, char out[BNET_FILE_PATH])
{
	size_t len = strnlen(text, BNET_FILE_PATH);

	if (len == BNET_FILE_PATH || (len && text[0] != '/'))
		return -EINVAL;
	memset(out, 0, BNET_FILE_PATH);
	memcpy(out, text, len);
	return 0;
}

/* ---- one row ---- */

static int64_t *number(const struct bnet_config_row *row, struct bnet_config *config)
{
	return (int64_t *)((char *)config + row->offset);
}

static struct bnet_ports *ports(const struct bnet_config_row *row, struct bnet_config *config)
{
	return (struct bnet_ports *)((char *)config + row->offset);
}

static char *text_of(const struct bnet_config_row *row, struct bnet_config *config)
{
	return (char *)config + row->offset;
}

/* Leaves out unchanged if the text is invalid. -EINVAL: it does not have the parameter's form; -ERANGE: a number out of
 * the range, or a list that is too long. */
static int parse_row(const struct bnet_config_row *row, const char *text, struct bnet_config *out)
{
	int64_t value;

	if (row->kind == BNET_KIND_PORTS)
		return bnet_parse_ports(text, ports(row, out));
	if (row->kind == BNET_KIND_WORD)
		return bnet_parse_word(text, text_of(row, out));
	if (row->kind == BNET_KIND_NAMES)
		return bnet_parse_names(text, text_of(row, out));
	if (row->kind == BNET_KIND_PREFIXES)
		return bnet_parse_prefixes(text, text_of(row, out));
	if (row->kind == BNET_KIND_FILE_PATH)
		return bnet_parse_file_path(text, text_of(row, out));
	if (row->kind == BNET_KIND_BYTES ? bnet_parse_bytes(text, &value) : bnet_parse_int(text, &value))
		return -EINVAL;
	if (value < row->min || value > row->max)
		return -ERANGE;
	*number(row, out) = value;
	return 0;
}

static void format_number(enum bnet_config_kind kind, int64_t value, char *text, size_t size)
{
	static const char suffixes[] = " KMG";
	int power = 0;

	if (kind == BNET_KIND_BYTES)
		while (value && value % 1024 == 0 && suffixes[power + 1]) {
			value /= 1024;
			power++;
		}
	if (power)
		snprintf(text, size, "%" PRId64 "%c", value, suffixes[power]);
	else
		snprintf(text, size, "%" PRId64, value);
}

static void format_ports(const struct bnet_ports *range, char *text)
{
	if (range->first)
		snprintf(text, BNET_CONFIG_TEXT, "%u-%u", range->first, range->last);
	else
		snprintf(text, BNET_CONFIG_TEXT, "0");
}

void bnet_config_format(const struct bnet_config_row *row, const struct bnet_config *config, char *text)
{
	struct bnet_config copy = *config;

	if (row->kind == BNET_KIND_PORTS)
		format_ports(ports(row, &copy), text);
	else if (row->kind == BNET_KIND_WORD || row->kind == BNET_KIND_NAMES || row->kind == BNET_KIND_PREFIXES ||
		 row->kind == BNET_KIND_FILE_PATH)
		snprintf(text, BNET_CONFIG_TEXT, "%s", text_of(row, &copy));
	else
		format_number(row->kind, *number(row, &copy), text, BNET_CONFIG_TEXT);
}

void bnet_config_range(const struct bnet_config_row *row, char *text)
{
	char min[32], max[32];

	if (row->kind == BNET_KIND_PORTS) {
		snprintf(text, BNET_CONFIG_TEXT, "FIRST-LAST in 1 … 65535, or 0");
		return;
	}
	if (row->kind == BNET_KIND_WORD) {
		snprintf(text, BNET_CONFIG_TEXT, "a name of up to %d letters, digits, - and _", BNET_WORD - 1);
		return;
	}
	if (row->kind == BNET_KIND_NAMES) {
		snprintf(text, BNET_CONFIG_TEXT, "0, 1, or names of interfaces with commas");
		return;
	}
	if (row->kind == BNET_KIND_PREFIXES) {
		snprintf(text, BNET_CONFIG_TEXT, "addresses and prefixes with commas, such as " PREFIXES_EXAMPLE);
		return;
	}
	if (row->kind == BNET_KIND_FILE_PATH) {
		snprintf(text, BNET_CONFIG_TEXT, "an absolute path of up to %d bytes", BNET_FILE_PATH - 1);
		return;
	}
	format_number(row->kind, row->min, min, sizeof(min));
	format_number(row->kind, row->max, max, sizeof(max));
	snprintf(text, BNET_CONFIG_TEXT, "%s … %s", min, max);
}

/* "not " … the range. */
static const char *wrong_about(const struct bnet_config_row *row, int rc)
{
	if (row->kind == BNET_KIND_INT)
		return rc == -ERANGE ? "in " : "a whole number in ";
	if (row->kind == BNET_KIND_BYTES)
		return rc == -ERANGE ? "in " : "a size such as 64K or 4M in ";
	return "";
}

static const char *remedy(const struct bnet_config_row *row)
{
	if (row->kind == BNET_KIND_WORD)
		return "such a name";
	if (row->kind == BNET_KIND_FILE_PATH)
		return "such a path";
	return row->kind == BNET_KIND_NAMES ? "one of those" : "a value in that range";
}

/* Of a list, the entry at fault is named: nothing else shows a blank in it. */
static void explain_prefixes(const struct bnet_config_row *row, const char *text, char *err, size_t err_size)
{
	size_t len;
	const char *bad = bnet_prefixes_bad(text, &len);

	if (bad)
		snprintf(err, err_size,
			 "%s=%.40s: not an address or a prefix: \"%.*s\"; unset it or use a list such as " PREFIXES_EXAMPLE,
			 row->name, text, (int)(len < 60 ? len : 60), bad);
	else
		snprintf(err, err_size, "%s=%.40s: longer than %d characters; unset it or use fewer prefixes",
			 row->name, text, BNET_PREFIXES - 1);
}

static void explain(const struct bnet_config_row *row, const struct bnet_config *config, const char *text, int rc,
		    char *err, size_t err_size)
{
	char deflt[BNET_CONFIG_TEXT], range[BNET_CONFIG_TEXT];

	if (row->kind == BNET_KIND_PREFIXES) {
		explain_prefixes(row, text, err, err_size);
		return;
	}
	bnet_config_format(row, config, deflt);
	bnet_config_range(row, range);
	snprintf(err, err_size, "%s=%.40s: not %s%.80s; unset it or use %s (the default is %.40s)", row->name, text,
		 wrong_about(row, rc), range, remedy(row), deflt[0] ? deflt : "empty");
}

/* Reads the row's value from the environment. -EINVAL with a line in err: the value is invalid, and out keeps the
 * default. */
static int read_row(const struct bnet_config_row *row, struct bnet_config *out, char *err, size_t err_size)
{
	const char *text = getenv(row->name);
	int rc = text ? parse_row(row, text, out) : 0;

	if (rc == 0)
		return 0;
	explain(row, out, text, rc, err, err_size);
	return -EINVAL;
}

/* ---- all rows ---- */

static int64_t round_up(int64_t value)
{
	return (value + SLICE_UNIT - 1) / SLICE_UNIT * SLICE_UNIT;
}

/* The smallest slice must not exceed the largest. Where only one was set, the other's default is adjusted. */
static int reconcile_slices(struct bnet_config *config, char *err, size_t err_size)
{
	const char *min = getenv("BAGUA_NET_MIN_CHUNKSIZE"), *max = getenv("BAGUA_NET_MAX_CHUNKSIZE");
	int64_t lower = round_up(config->min_chunksize), upper = round_up(config->max_chunksize);
	int ret = 0;

	if (lower > upper && min && max) {
		snprintf(err, err_size,
			 "BAGUA_NET_MAX_CHUNKSIZE=%.40s: below BAGUA_NET_MIN_CHUNKSIZE=%.40s; raise it or unset one of "
			 "them (using that size for both)",
			 max, min);
		ret = -EINVAL;
	}
	if (lower > upper && max && !min)
		lower = upper;
	if (lower > upper)
		upper = lower;
	config->min_chunksize = lower;
	config->max_chunksize = upper;
	return ret;
}

void bnet_config_defaults(struct bnet_config *out)
{
	memset(out, 0, sizeof(*out));
	for (int i = 0; i < bnet_config_row_count; i++)
		parse_row(&bnet_config_rows[i], bnet_config_rows[i].deflt, out);
}

/* Reports only the first error: later ones get an empty buffer. */
static int read_rows(struct bnet_config *out, char *err, size_t err_size)
{
	int ret = 0;

	bnet_config_defaults(out);
	for (int i = 0; i < bnet_config_row_count; i++)
		if (read_row(&bnet_config_rows[i], out, err, ret ? 0 : err_size))
			ret = -EINVAL;
	return ret;
}

int bnet_config_read(struct bnet_config *out, char *err, size_t err_size)
{
	int ret = read_rows(out, err, err_size);

	if (reconcile_slices(out, err, ret ? 0 : err_size))
		ret = -EINVAL;
	return ret;
}

int bnet_config_check(int row, char *err, size_t err_size)
{
	struct bnet_config config;

	bnet_config_defaults(&config);
	if (read_row(&bnet_config_rows[row], &config, err, err_size))
		return -EINVAL;
	if (bnet_config_rows[row].offset != offsetof(struct bnet_config, max_chunksize))
		return 0;
	read_rows(&config, NULL, 0);
	return reconcile_slices(&config, err, err_size);
}

/* ---- unknown variables ---- */

static bool is_known(const char *name)
{
	for (int i = 0; i < bnet_config_row_count; i++)
		if (strcmp(name, bnet_config_rows[i].name) == 0)
			return true;
	for (size_t i = 0; i < sizeof(other_prefixes) / sizeof(other_prefixes[0]); i++)
		if (strncmp(name, other_prefixes[i], strlen(other_prefixes[i])) == 0)
			return true;
	return false;
}

/* Levenshtein distance: insertions, deletions and substitutions. Both names are shorter than NAME_SIZE. */
static int edit_distance(const char *a, const char *b)
{
	int row[NAME_SIZE + 1];
	int len = (int)strlen(b);

	for (int j = 0; j <= len; j++)
		row[j] = j;
	for (int i = 0; a[i]; i++) {
		int diagonal = row[0];

		row[0] = i + 1;
		for (int j = 0; j < len; j++) {
			int best = diagonal + (a[i] != b[j]);

			diagonal = row[j + 1];
			if (best > diagonal + 1)
				best = diagonal + 1;
			if (best > row[j] + 1)
				best = row[j] + 1;
			row[j + 1] = best;
		}
	}
	return row[len];
}

static const char *nearest_name(const char *name)
{
	const char *nearest = NULL;
	int least = 4; /* beyond three edits the name is probably not a misspelling */

	for (int i = 0; i < bnet_config_row_count; i++) {
		int distance = edit_distance(name, bnet_config_rows[i].name);

		if (distance < least) {
			least = distance;
			nearest = bnet_config_rows[i].name;
		}
	}
	return nearest;
}

/* A job without it is in clear, and goes on. */
static bool protects(const char *name)
{
	static const char *const names[] = {"BAGUA_NET_SECRET_FILE", "BAGUA_NET_ENCRYPT", "BAGUA_NET_CHECKSUM"};

	for (size_t i = 0; name && i < sizeof(names) / sizeof(names[0]); i++)
		if (strcmp(name, names[i]) == 0)
			return true;
	return false;
}

int bnet_config_unknown(int number, bool *grave, char *err, size_t err_size)
{
	for (char **entry = environ; entry && *entry; entry++) {
		char name[NAME_SIZE];
		const char *nearest;

		if (strncmp(*entry, PREFIX, strlen(PREFIX)) != 0)
			continue;
		snprintf(name, sizeof(name), "%.*s", (int)strcspn(*entry, "="), *entry);
		if (is_known(name) || number-- > 0)
			continue;
		nearest = nearest_name(name);
		*grave = protects(nearest);
		if (nearest)
			snprintf(err, err_size, "%s is not a parameter; did you mean %s?", name, nearest);
		else
			snprintf(err, err_size, "%s is not a parameter of this version; `bagua-net params` lists them",
				 name);
		return -EINVAL;
	}
	return 0;
}
