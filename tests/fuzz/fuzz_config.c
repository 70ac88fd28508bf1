/* SPDX-License-Identifier: MIT
 *
 * Text from the environment: parameter values, parameter names, interface lists. The input is three strings, each
 * terminated by a zero byte or the end of the input.
 */
#include "base/config.h"
#include "device/scan.h"
#include "device/select.h"
#include "device/sysfs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "script.h"

#define TEXT_SIZE 600

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void take_text(const uint8_t **data, size_t *size, char *text)
{
	size_t len = strnlen((const char *)*data, *size);
	size_t kept = len < TEXT_SIZE ? len : TEXT_SIZE - 1;

	memcpy(text, *data, kept);
	text[kept] = '\0';
	len += len < *size;
	*data += len;
	*size -= len;
}

/* A text that both number parsers accept has the same value in both. */
static void parse(const char *text)
{
	int64_t number = INT64_MIN, bytes = -1;
	struct bnet_ports ports = {7, 7};
	char word[BNET_WORD] = "?", names[BNET_NAMES] = "?", prefixes[BNET_PREFIXES] = "?";
	int is_number = bnet_parse_int(text, &number) == 0;
	int is_bytes = bnet_parse_bytes(text, &bytes) == 0;

	EXPECT(is_number ? number > INT64_MIN && (text[0] == '-') != is_bytes : number == INT64_MIN);
	EXPECT(!is_number || !is_bytes || bytes == number);
	EXPECT(is_bytes ? bytes >= 0 : bytes == -1);
	if (bnet_parse_ports(text, &ports) == 0)
		EXPECT(ports.first <= ports.last && (ports.first > 0) == (ports.last > 0));
	else
		EXPECT(ports.first == 7 && ports.last == 7);
	if (bnet_parse_word(text, word) == 0)
		EXPECT(strcmp(word, text) == 0 && word[BNET_WORD - 1] == '\0' && !strpbrk(text, " %/\n?"));
	else
		EXPECT(strcmp(word, "?") == 0);
	if (bnet_parse_names(text, names) == 0)
		EXPECT(strcmp(names, text) == 0 && names[0] != ',' && !strstr(names, ",,") && !strpbrk(text, " %/\n?"));
	else
		EXPECT(strcmp(names, "?") == 0);
	if (bnet_parse_prefixes(text, prefixes) == 0)
		EXPECT(strcmp(prefixes, text) == 0 && prefixes[0] != ',' && !strstr(prefixes, ",,"));
	else
		EXPECT(strcmp(prefixes, "?") == 0);
}

/* Whatever the variables hold, the parameters are usable, and every error has a line. Formatted values can be read
 * back. */
static void read_environment(const char *value)
{
	char entry[BNET_CONFIG_LINE + TEXT_SIZE];
	char *only[] = {entry, NULL}, **saved = environ; /* the C library never frees what setenv has taken */

	environ = only;
	for (int i = 0; i < bnet_config_row_count; i++) {
		const struct bnet_config_row *row = &bnet_config_rows[i];
		struct bnet_config config, again;
		char err[BNET_CONFIG_LINE] = "", text[BNET_CONFIG_TEXT];
		int ret;

		snprintf(entry, sizeof(entry), "%s=%s", row->name, value);
		ret = bnet_config_read(&config, err, sizeof(err));
		EXPECT((ret == 0) == (err[0] == '\0'));
		EXPECT((ret == 0) == (bnet_config_check(i, err, sizeof(err)) == 0));
		EXPECT(config.min_chunksize >= 4096 && config.min_chunksize <= config.max_chunksize);
		EXPECT(config.max_chunksize % 4096 == 0 && config.min_chunksize % 4096 == 0);
		bnet_config_format(row, &config, text);
		snprintf(entry, sizeof(entry), "%s=%s", row->name, text);
		EXPECT(bnet_config_read(&again, err, sizeof(err)) == 0);
		EXPECT(memcmp(&config, &again, sizeof(config)) == 0);
	}
	environ = saved;
}

static void look_for_typos(const char *text)
{
	char entry[TEXT_SIZE + 16], err[BNET_CONFIG_LINE] = "";
	bool grave;
	char *only[] = {entry, NULL}, **saved = environ;
	int ret;

	snprintf(entry, sizeof(entry), "BAGUA_NET_%s", text);
	environ = only;
	ret = bnet_config_unknown(0, &grave, err, sizeof(err));
	environ = saved;
	EXPECT((ret == 0) == (err[0] == '\0'));
}

static void match(const char *list, const char *name)
{
	struct bnet_interface candidate = {.flags = IFF_UP | IFF_RUNNING, .rank = BNET_ADDRESS_IPV4};
	char other[TEXT_SIZE + 1], reason[160];
	struct bnet_rules rules;

	snprintf(candidate.name, sizeof(candidate.name), "%s", name);
	snprintf(other, sizeof(other), "^%s", list);
	if (list[0] != '^')
		EXPECT(bnet_ifname_match(other, name) != bnet_ifname_match(list, name));
	other[0] = '=';
	if (list[0] != '^' && list[0] != '=' && bnet_ifname_match(other, name))
		EXPECT(bnet_ifname_match(list, name));
	EXPECT(bnet_rules_parse(&rules, list, NULL, NULL) == 0);
	if (bnet_is_selected(&rules, bnet_choose_tier(&rules, &candidate, 1), &candidate, reason, sizeof(reason)))
		EXPECT(!rules.ifname || bnet_ifname_match(list, candidate.name));
	else
		EXPECT(reason[0] && strlen(reason) < sizeof(reason));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char value[TEXT_SIZE], list[TEXT_SIZE], name[TEXT_SIZE];

	take_text(&data, &size, value);
	take_text(&data, &size, list);
	take_text(&data, &size, name);
	parse(value);
	read_environment(value);
	look_for_typos(value);
	match(list, name);
	return 0;
}
