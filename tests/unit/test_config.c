/* SPDX-License-Identifier: MIT
 *
 * Parameters: the values that each parser accepts and refuses, the effect of the environment, and the error lines.
 */
#include "bagua_net.h"
#include "check.h"
#include "base/config.h"

#include <errno.h>

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define REFUSED INT64_MIN

/* ---- parsers ---- */

static const struct {
	const char *text;
	int64_t as_int, as_bytes;
} numbers[] = {
	{"0", 0, 0},
	{"7", 7, 7},
	{"007", 7, 7},
	{"65536", 65536, 65536},
	{"9223372036854775807", INT64_MAX, INT64_MAX},
	{"9223372036854775808", REFUSED, REFUSED},
	{"99999999999999999999999", REFUSED, REFUSED},
	{"1K", REFUSED, 1024},
	{"1k", REFUSED, 1024},
	{"3M", REFUSED, 3 * 1048576},
	{"2g", REFUSED, INT64_C(2) << 30},
	{"0G", REFUSED, 0},
	{"8589934591G", REFUSED, INT64_C(8589934591) << 30},
	{"8589934592G", REFUSED, REFUSED},
	{"1T", REFUSED, REFUSED},
	{"1KB", REFUSED, REFUSED},
	{"1KK", REFUSED, REFUSED},
	{"1 K", REFUSED, REFUSED},
	{"K", REFUSED, REFUSED},
	{"", REFUSED, REFUSED},
	{" 1", REFUSED, REFUSED},
	{"1 ", REFUSED, REFUSED},
	{"+1", REFUSED, REFUSED},
	{"-1", -1, REFUSED},
	{"-0", 0, REFUSED},
	{"--1", REFUSED, REFUSED},
	{"-", REFUSED, REFUSED},
	{"-9223372036854775808", REFUSED, REFUSED},
	{"1.5", REFUSED, REFUSED},
	{"0x10", REFUSED, REFUSED},
	{"1e3", REFUSED, REFUSED},
	{"four", REFUSED, REFUSED},
};

static void test_numbers(void)
{
	for (size_t i = 0; i < COUNT(numbers); i++) {
		int64_t value = REFUSED;

		check_int(bnet_parse_int(numbers[i].text, &value), numbers[i].as_int == REFUSED ? -EINVAL : 0);
		check_int(value, numbers[i].as_int);
		value = REFUSED;
		check_int(bnet_parse_bytes(numbers[i].text, &value), numbers[i].as_bytes == REFUSED ? -EINVAL : 0);
		check_int(value, numbers[i].as_bytes);
	}
}

static const struct {
	const char *text;
	int ret, first, last;
} port_ranges[] = {
	{"0", 0, 0, 0},
	{"1-65535", 0, 1, 65535},
	{"40000-40100", 0, 40000, 40100},
	{"40000-40000", 0, 40000, 40000},
	{"40000", -EINVAL, 0, 0},
	{"40100-40000", -EINVAL, 0, 0},
	{"0-10", -EINVAL, 0, 0},
	{"0-0", -EINVAL, 0, 0},
	{"1-65536", -EINVAL, 0, 0},
	{"4294967297-4294967298", -EINVAL, 0, 0},
	{"1-2-3", -EINVAL, 0, 0},
	{"1-", -EINVAL, 0, 0},
	{"-1", -EINVAL, 0, 0},
	{"1 - 2", -EINVAL, 0, 0},
	{"1-2 ", -EINVAL, 0, 0},
	{"", -EINVAL, 0, 0},
};

static void test_ports(void)
{
	for (size_t i = 0; i < COUNT(port_ranges); i++) {
		struct bnet_ports range = {0, 0};

		check_int(bnet_parse_ports(port_ranges[i].text, &range), port_ranges[i].ret);
		check_int(range.first, port_ranges[i].first);
		check_int(range.last, port_ranges[i].last);
	}
}

static const struct {
	const char *text;
	int ret;
} words[] = {
	{"", 0},          {"bbr", 0},        {"BPF_cubic-2", 0}, {"fifteen-letters", 0}, {"sixteen--letters", -EINVAL},
	{"b b", -EINVAL}, {" bbr", -EINVAL}, {"bbr\n", -EINVAL}, {"b.r", -EINVAL},       {"b/r", -EINVAL},
	{"b%s", -EINVAL}, {"bär", -EINVAL},
};

/* The bytes after the name are zero, so that configurations can be compared byte by byte. */
static void test_words(void)
{
	for (size_t i = 0; i < COUNT(words); i++) {
		char word[BNET_WORD] = "untouched------", wanted[BNET_WORD] = "untouched------";

		if (words[i].ret == 0) {
			memset(wanted, 0, sizeof(wanted));
			memcpy(wanted, words[i].text, strlen(words[i].text));
		}
		check_int(bnet_parse_word(words[i].text, word), words[i].ret);
		check(memcmp(word, wanted, sizeof(word)) == 0);
	}
}

static const struct {
	const char *text;
	int ret;
} lists[] = {
	{"", 0},
	{"1", 0},
	{"eth0", 0},
	{"eth0,eth1", 0},
	{"eth0.100,bond-1,br_2", 0},
	{"fifteen-letters,fifteen-letter2", 0},
	{"sixteen--letters", -EINVAL},
	{"eth0,sixteen--letters", -EINVAL},
	{",", -EINVAL},
	{"eth0,", -EINVAL},
	{",eth0", -EINVAL},
	{"eth0,,eth1", -EINVAL},
	{"eth0, eth1", -EINVAL},
	{"eth0;eth1", -EINVAL},
	{"eth%s", -EINVAL},
};

static void test_lists(void)
{
	char longest[BNET_NAMES + 1], names[BNET_NAMES];

	for (size_t i = 0; i < COUNT(lists); i++) {
		char wanted[BNET_NAMES] = "untouched";

		snprintf(names, sizeof(names), "untouched");
		if (lists[i].ret == 0)
			snprintf(wanted, sizeof(wanted), "%s", lists[i].text);
		check_int(bnet_parse_names(lists[i].text, names), lists[i].ret);
		check_str(names, wanted);
	}
	for (size_t i = 0; i < BNET_NAMES; i++)
		longest[i] = i % 16 == 15 ? ',' : 'a';
	longest[BNET_NAMES - 1] = '\0'; /* sixteen names of fifteen letters */
	check_int(bnet_parse_names(longest, names), 0);
	check_str(names, longest);
	snprintf(longest + BNET_NAMES - 1, 2, "a");
	check_int(bnet_parse_names(longest, names), -EINVAL);
}

/* ---- the environment ---- */

static void clear_environment(void)
{
	for (int i = 0; i < bnet_config_row_count; i++)
		unsetenv(bnet_config_rows[i].name);
}

/* Every default is a valid value of its row, and an empty environment yields the defaults. */
static void test_defaults(void)
{
	struct bnet_config defaults, config;
	char err[BNET_CONFIG_LINE];

	clear_environment();
	check_int(bnet_config_read(&config, err, sizeof(err)), 0);
	bnet_config_defaults(&defaults);
	check(memcmp(&config, &defaults, sizeof(config)) == 0);
	for (int i = 0; i < bnet_config_row_count; i++) {
		setenv(bnet_config_rows[i].name, bnet_config_rows[i].deflt, 1);
		check_int(bnet_config_check(i, err, sizeof(err)), 0);
	}
	check_int(bnet_config_read(&config, err, sizeof(err)), 0);
	check(memcmp(&config, &defaults, sizeof(config)) == 0);
	clear_environment();
}

static void test_values_are_taken(void)
{
	struct bnet_config config;
	char err[BNET_CONFIG_LINE];

	setenv("BAGUA_NET_NSTREAMS", "8", 1);
	setenv("BAGUA_NET_SNDBUF", "256K", 1);
	setenv("BAGUA_NET_PORT_RANGE", "40000-40063", 1);
	setenv("BAGUA_NET_CONGESTION", "dctcp", 1);
	check_int(bnet_config_read(&config, err, sizeof(err)), 0);
	check_int(config.nstreams, 8);
	check_int(config.sndbuf, 262144);
	check_int(config.port_range.first, 40000);
	check_int(config.port_range.last, 40063);
	check_str(config.congestion, "dctcp");
	clear_environment();
}

static const struct {
	const char *name, *value, *line;
} bad_values[] = {
	{"BAGUA_NET_CONNECT_TIMEOUT", "0",
	 "BAGUA_NET_CONNECT_TIMEOUT=0: not in 1 … 86400; unset it or use a value in that range (the default is 300)"},
	{"BAGUA_NET_CONNECT_TIMEOUT", "86401",
	 "BAGUA_NET_CONNECT_TIMEOUT=86401: not in 1 … 86400; unset it or use a value in that range (the default is "
	 "300)"},
	{"BAGUA_NET_CONNECT_TIMEOUT", "",
	 "BAGUA_NET_CONNECT_TIMEOUT=: not a whole number in 1 … 86400; unset it or use a value in that range (the "
	 "default is 300)"},
	{"BAGUA_NET_SNDBUF", "4MB",
	 "BAGUA_NET_SNDBUF=4MB: not a size such as 64K or 4M in 0 … 1G; unset it or use a value in that range (the "
	 "default is 0)"},
	{"BAGUA_NET_CONNECT_TIMEOUT", "1K",
	 "BAGUA_NET_CONNECT_TIMEOUT=1K: not a whole number in 1 … 86400; unset it or use a value in that range (the "
	 "default is 300)"},
	{"BAGUA_NET_MIN_CHUNKSIZE", "4095",
	 "BAGUA_NET_MIN_CHUNKSIZE=4095: not in 4K … 1G; unset it or use a value in that range (the default is 64K)"},
	{"BAGUA_NET_MIN_CHUNKSIZE", "2G",
	 "BAGUA_NET_MIN_CHUNKSIZE=2G: not in 4K … 1G; unset it or use a value in that range (the default is 64K)"},
	{"BAGUA_NET_PORT_RANGE", "80",
	 "BAGUA_NET_PORT_RANGE=80: not FIRST-LAST in 1 … 65535, or 0; unset it or use a value in that range (the default is "
	 "0)"},
	{"BAGUA_NET_CONGESTION", "bbr,cubic",
	 "BAGUA_NET_CONGESTION=bbr,cubic: not a name of up to 15 letters, digits, - and _; unset it or use such a name (the "
	 "default is empty)"},
	{"BAGUA_NET_ADDRESS_PREFIX", "10.0.0.0/8, fd00::/8",
	 "BAGUA_NET_ADDRESS_PREFIX=10.0.0.0/8, fd00::/8: not an address or a prefix: \" fd00::/8\"; unset it or use a list "
	 "such as 10.0.0.0/8,fd00::/8"},
	{"BAGUA_NET_TRAFFIC_CLASS", "256",
	 "BAGUA_NET_TRAFFIC_CLASS=256: not in 0 … 255; unset it or use a value in that range (the default is 0)"},
};

static void test_bad_values(void)
{
	struct bnet_config defaults, config;

	bnet_config_defaults(&defaults);
	for (size_t i = 0; i < COUNT(bad_values); i++) {
		char err[BNET_CONFIG_LINE] = "";

		setenv(bad_values[i].name, bad_values[i].value, 1);
		check_int(bnet_config_read(&config, err, sizeof(err)), -EINVAL);
		check_str(err, bad_values[i].line);
		check(memcmp(&config, &defaults, sizeof(config)) == 0);
		check_int(bnet_config_read(&config, NULL, 0), -EINVAL);
		clear_environment();
	}
}

/* An invalid value affects only its row, and the first invalid row is reported. */
static void test_first_error_is_reported(void)
{
	struct bnet_config config;
	char err[BNET_CONFIG_LINE];

	setenv("BAGUA_NET_SNDBUF", "lots", 1);
	setenv("BAGUA_NET_RCVBUF", "128K", 1);
	setenv("BAGUA_NET_CONNECT_TIMEOUT", "never", 1);
	check_int(bnet_config_read(&config, err, sizeof(err)), -EINVAL);
	check(strncmp(err, "BAGUA_NET_SNDBUF=lots: ", strlen("BAGUA_NET_SNDBUF=lots: ")) == 0);
	check_int(config.sndbuf, 0);
	check_int(config.rcvbuf, 131072);
	check_int(config.connect_timeout, 300);
	clear_environment();
}

/* However long the value, the line keeps the advice at its end. */
static void test_long_value(void)
{
	struct bnet_config config;
	char err[BNET_CONFIG_LINE], value[4096];

	memset(value, '9', sizeof(value) - 1);
	value[sizeof(value) - 1] = '\0';
	setenv("BAGUA_NET_CONNECT_TIMEOUT", value, 1);
	check_int(bnet_config_read(&config, err, sizeof(err)), -EINVAL);
	check(strstr(err, "(the default is 300)") != NULL);
	clear_environment();
}

/* So many prefixes are kept as fit, and more are refused for what they are. */
static void test_many_prefixes(void)
{
	struct bnet_config config;
	char err[BNET_CONFIG_LINE], value[BNET_PREFIXES + 8];

	for (size_t i = 0; i < BNET_PREFIXES; i += 8)
		snprintf(value + i, 9, "fd00::1,");
	value[BNET_PREFIXES - 1] = '\0';
	setenv("BAGUA_NET_ADDRESS_PREFIX", value, 1);
	check_int(bnet_config_read(&config, err, sizeof(err)), 0);
	check_str(config.address_prefix, value);
	snprintf(value + BNET_PREFIXES - 1, 9, ",fd00::1");
	setenv("BAGUA_NET_ADDRESS_PREFIX", value, 1);
	check_int(bnet_config_read(&config, err, sizeof(err)), -EINVAL);
	check(strstr(err, ": longer than 255 characters; unset it or use fewer prefixes") != NULL);
	check_str(config.address_prefix, "");
	clear_environment();
}

/* NULL: not set. */
static const struct {
	const char *min, *max;
	int ret, lower, upper;
} slices[] = {
	{NULL, NULL, 0, 65536, 1048576}, {"4097", "10000", 0, 8192, 12288}, {"4M", NULL, 0, 4194304, 4194304},
	{NULL, "16K", 0, 16384, 16384},  {"64K", "64K", 0, 65536, 65536},   {"1M", "64K", -EINVAL, 1048576, 1048576},
};

static void test_slices_agree(void)
{
	for (size_t i = 0; i < COUNT(slices); i++) {
		struct bnet_config config;
		char err[BNET_CONFIG_LINE] = "";

		if (slices[i].min)
			setenv("BAGUA_NET_MIN_CHUNKSIZE", slices[i].min, 1);
		if (slices[i].max)
			setenv("BAGUA_NET_MAX_CHUNKSIZE", slices[i].max, 1);
		check_int(bnet_config_read(&config, err, sizeof(err)), slices[i].ret);
		check_int(config.min_chunksize, slices[i].lower);
		check_int(config.max_chunksize, slices[i].upper);
		if (slices[i].ret)
			check(strstr(err, "BAGUA_NET_MAX_CHUNKSIZE=64K: below BAGUA_NET_MIN_CHUNKSIZE=1M") != NULL);
		clear_environment();
	}
}

/* ---- misspelt names ---- */

static const struct {
	const char *name, *line; /* line NULL: no complaint */
	bool grave;
} names[] = {
	{"BAGUA_NET_ENCRPYT", "BAGUA_NET_ENCRPYT is not a parameter; did you mean BAGUA_NET_ENCRYPT?", true},
	{"BAGUA_NET_SECRETFILE", "BAGUA_NET_SECRETFILE is not a parameter; did you mean BAGUA_NET_SECRET_FILE?", true},
	{"BAGUA_NET_NSTREAMS", NULL, false},
	{"BAGUA_NET_BENCH_RANKS", NULL, false},
	{"BAGUA_NET_TEST_SEED", NULL, false},
	{"BAGUA_NETWORK", NULL, false},
	{"BAGUA_NET_NSTREAM", "BAGUA_NET_NSTREAM is not a parameter; did you mean BAGUA_NET_NSTREAMS?", false},
	{"BAGUA_NET_STREAMS", "BAGUA_NET_STREAMS is not a parameter; did you mean BAGUA_NET_NSTREAMS?", false},
	{"BAGUA_NET_MIN_CHUNK_SIZE",
	 "BAGUA_NET_MIN_CHUNK_SIZE is not a parameter; did you mean BAGUA_NET_MIN_CHUNKSIZE?", false},
	{"BAGUA_NET_PROT_RANGE", "BAGUA_NET_PROT_RANGE is not a parameter; did you mean BAGUA_NET_PORT_RANGE?", false},
	{"BAGUA_NET_IMPLEMENT", "BAGUA_NET_IMPLEMENT is not a parameter of this version; `bagua-net params` lists them",
	 false},
	{"BAGUA_NET_", "BAGUA_NET_ is not a parameter of this version; `bagua-net params` lists them", false},
};

static void test_unknown_names(void)
{
	for (size_t i = 0; i < COUNT(names); i++) {
		char err[BNET_CONFIG_LINE] = "";
		bool grave = false;

		setenv(names[i].name, "1", 1);
		check_int(bnet_config_unknown(0, &grave, err, sizeof(err)), names[i].line ? -EINVAL : 0);
		check_str(err, names[i].line ? names[i].line : "");
		check_int(grave, names[i].grave);
		check_int(bnet_config_unknown(1, &grave, err, sizeof(err)), 0);
		unsetenv(names[i].name);
	}
}

static void test_each_unknown_name_is_named(void)
{
	char first[BNET_CONFIG_LINE], second[BNET_CONFIG_LINE], third[BNET_CONFIG_LINE];
	bool grave;

	setenv("BAGUA_NET_STREAM", "1", 1);
	setenv("BAGUA_NET_ENCRPYT", "1", 1);
	check_int(bnet_config_unknown(0, &grave, first, sizeof(first)), -EINVAL);
	check_int(bnet_config_unknown(1, &grave, second, sizeof(second)), -EINVAL);
	check_int(bnet_config_unknown(2, &grave, third, sizeof(third)), 0);
	check(strcmp(first, second) != 0);
	unsetenv("BAGUA_NET_STREAM");
	unsetenv("BAGUA_NET_ENCRPYT");
}

static void test_overlong_name(void)
{
	char name[1024] = "BAGUA_NET_", err[BNET_CONFIG_LINE];
	bool grave;

	memset(name + strlen(name), 'X', sizeof(name) - strlen(name) - 1);
	setenv(name, "1", 1);
	check_int(bnet_config_unknown(0, &grave, err, sizeof(err)), -EINVAL);
	unsetenv(name);
}

/* ---- the interface for Python ---- */

static int row_of(const char *name)
{
	for (int i = 0; i < bnet_config_row_count; i++)
		if (strcmp(bnet_config_rows[i].name, name) == 0)
			return i;
	return -1;
}

static void test_params(void)
{
	bnet_param_t chunk, timeout, congestion;

	setenv("BAGUA_NET_MIN_CHUNKSIZE", "131072", 1);
	setenv("BAGUA_NET_CONNECT_TIMEOUT", "soon", 1);
	check_int(bnet_param_count(), bnet_config_row_count);
	check_int(bnet_param_get(row_of("BAGUA_NET_MIN_CHUNKSIZE"), &chunk), 0);
	check_int(bnet_param_get(row_of("BAGUA_NET_CONNECT_TIMEOUT"), &timeout), 0);
	check_str(chunk.name, "BAGUA_NET_MIN_CHUNKSIZE");
	check_str(chunk.kind, "bytes");
	check_str(chunk.deflt, "64K");
	check_str(chunk.range, "4K … 1G");
	check_str(chunk.value, "128K");
	check_int(chunk.set, 1);
	check(chunk.error == NULL);
	check_str(timeout.kind, "int");
	check_str(timeout.value, "300");
	check_int(timeout.set, 1);
	check(timeout.error &&
	      strstr(timeout.error, "BAGUA_NET_CONNECT_TIMEOUT=soon: not a whole number in 1 … 86400"));
	clear_environment();
	check_int(bnet_param_get(row_of("BAGUA_NET_CONNECT_TIMEOUT"), &timeout), 0);
	check_int(timeout.set, 0);
	check(timeout.error == NULL);
	setenv("BAGUA_NET_CONGESTION", "cubic", 1);
	check_int(bnet_param_get(row_of("BAGUA_NET_CONGESTION"), &congestion), 0);
	check_str(congestion.kind, "string");
	check_str(congestion.deflt, "");
	check_str(congestion.range, "a name of up to 15 letters, digits, - and _");
	check_str(congestion.value, "cubic");
	clear_environment();
	check_int(bnet_param_get(-1, &chunk), -EINVAL);
	check_int(bnet_param_get(bnet_param_count(), &chunk), -EINVAL);
}

/* The row that is adjusted reports the error; the other one does not. */
static void test_params_that_conflict(void)
{
	bnet_param_t min, max;

	setenv("BAGUA_NET_MIN_CHUNKSIZE", "1M", 1);
	setenv("BAGUA_NET_MAX_CHUNKSIZE", "64K", 1);
	check_int(bnet_param_get(row_of("BAGUA_NET_MIN_CHUNKSIZE"), &min), 0);
	check_int(bnet_param_get(row_of("BAGUA_NET_MAX_CHUNKSIZE"), &max), 0);
	check(min.error == NULL);
	check(max.error != NULL);
	check_str(max.value, "1M");
	clear_environment();
}

int main(void)
{
	clear_environment();
	test_numbers();
	test_ports();
	test_words();
	test_lists();
	test_defaults();
	test_values_are_taken();
	test_bad_values();
	test_first_error_is_reported();
	test_long_value();
	test_many_prefixes();
	test_slices_agree();
	test_unknown_names();
	test_each_unknown_name_is_named();
	test_overlong_name();
	test_params();
	test_params_that_conflict();
	return 0;
}
