/* SPDX-License-Identifier: MIT
 *
 * What Python reads from the library: version, parameters, interfaces. Results are in static memory, so one thread at a
 * time, as bagua_net.h requires.
 */
#include "bagua_net.h"
#include "base/config.h"
#include "base/secret.h"
#include "device/scan.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ABI_VERSION 9

enum {
	ROWS = 0
#define INT(...) +1
#define BYTES(...) +1
#define PORTS(...) +1
#define WORD(...) +1
#define NAMES(...) +1
#define PREFIXES(...) +1
#define PATH(...) +1
#include "base/config.def"
#undef INT
#undef BYTES
#undef PORTS
#undef WORD
#undef NAMES
#undef PREFIXES
#undef PATH
};

int bnet_abi_version(void)
{
	return ABI_VERSION;
}

const char *bnet_version(void)
{
	return BNET_VERSION;
}

/* ---- parameters ---- */

static const char *kind_name(enum bnet_config_kind kind)
{
	switch (kind) {
	case BNET_KIND_INT:
		return "int";
	case BNET_KIND_BYTES:
		return "bytes";
	case BNET_KIND_PORTS:
		return "ports";
	case BNET_KIND_WORD:
	case BNET_KIND_NAMES:
	case BNET_KIND_PREFIXES:
	case BNET_KIND_FILE_PATH:
		return "string";
	}
	return "string";
}

/* What the processes would only say when they start. */
static int check_secret(const struct bnet_config_row *row, const struct bnet_config *config, char *err, size_t err_size)
{
	if (row->offset == offsetof(struct bnet_config, encrypt) && config->encrypt && !config->secret_file[0]) {
		snprintf(err, err_size, "%s=1: it needs a secret; set BAGUA_NET_SECRET_FILE as well", row->name);
		return -EINVAL;
	}
	if (row->offset != offsetof(struct bnet_config, secret_file))
		return 0;
	return bnet_secret_check(config->secret_file, err, err_size);
}

int bnet_param_count(void)
{
	return ROWS;
}

int bnet_param_get(int row, bnet_param_t *out)
{
	static struct {
		char deflt[BNET_CONFIG_TEXT], range[BNET_CONFIG_TEXT], value[BNET_CONFIG_TEXT];
		char error[BNET_SECRET_LINE];
	} texts[ROWS];
	const struct bnet_config_row *source;
	struct bnet_config defaults, config;

	if (row < 0 || row >= ROWS)
		return -EINVAL;
	source = &bnet_config_rows[row];
	bnet_config_defaults(&defaults);
	bnet_config_read(&config, NULL, 0);
	bnet_config_format(source, &defaults, texts[row].deflt);
	bnet_config_format(source, &config, texts[row].value);
	bnet_config_range(source, texts[row].range);
	*out = (bnet_param_t){
		.name = source->name,
		.kind = kind_name(source->kind),
		.deflt = texts[row].deflt,
		.range = texts[row].range,
		.help = source->help,
		.value = texts[row].value,
		.set = getenv(source->name) != NULL,
	};
	if (bnet_config_check(row, texts[row].error, sizeof(texts[row].error)) ||
	    check_secret(source, &config, texts[row].error, sizeof(texts[row].error)))
		out->error = texts[row].error;
	return 0;
}

/* ---- interfaces ---- */

static struct bnet_device_table interfaces;

int bnet_interface_scan(void)
{
	int ret = bnet_device_scan_here(&interfaces);

	if (ret && ret != -ENODEV) /* without a device, the rows have the reasons */
		return ret;
	return interfaces.nnics + interfaces.nrejected;
}

static void show_nic(const struct bnet_nic *nic, bnet_interface_t *out)
{
	*out = (bnet_interface_t){
		.name = nic->name,
		.address = nic->address,
		.pci_path = nic->pci_path[0] ? nic->pci_path : NULL,
		.speed_mbps = nic->speed_mbps,
		.speed_known = nic->speed_known,
		.mtu = nic->mtu,
		.numa_node = nic->numa_node,
	};
}

static void show_rejected(const struct bnet_rejected *rejected, bnet_interface_t *out)
{
	*out = (bnet_interface_t){
		.name = rejected->name,
		.address = rejected->address,
		.reason = rejected->reason,
		.numa_node = -1,
	};
}

void bnet_interface_prefer(const char *ifname)
{
	bnet_device_prefer(ifname);
}

int bnet_interface_get(int row, bnet_interface_t *out)
{
	if (row < 0 || row >= interfaces.nnics + interfaces.nrejected)
		return -EINVAL;
	if (row < interfaces.nnics)
		show_nic(&interfaces.nics[row], out);
	else
		show_rejected(&interfaces.rejected[row - interfaces.nnics], out);
	return 0;
}
