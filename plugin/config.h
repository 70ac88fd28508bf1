/* SPDX-License-Identifier: MIT
 *
 * The parameters of config.def, read from the environment once, before the first connection.
 */
#ifndef BNET_CONFIG_H
#define BNET_CONFIG_H

#include <stddef.h>
#include <stdint.h>

struct bnet_ports {
	uint16_t first; /* 0: any */
	uint16_t last;
};

struct bnet_config {
#define INT(field, name, deflt, min, max, help) int64_t field;
#define BYTES(field, name, deflt, min, max, help) int64_t field;
#define PORTS(field, name, deflt, help) struct bnet_ports field;
#include "config.def"
#undef INT
#undef BYTES
#undef PORTS
};

/* Reads every parameter through getenv. 0, or -EINVAL with one line in err (the variable, its value, the range) for
 * the first bad one; out then holds the defaults in its place. */
int bnet_config_read(struct bnet_config *out, char *err, size_t err_size);

/* The parsers, pure: 0 or -EINVAL. */
int bnet_parse_int(const char *text, int64_t *out);
int bnet_parse_bytes(const char *text, int64_t *out);
int bnet_parse_ports(const char *text, struct bnet_ports *out);

#endif
