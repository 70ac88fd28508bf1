/* SPDX-License-Identifier: MIT
 *
 * Scenarios about devices that NCCL merges into one.
 */
#include "drive_contract.h"

#include <stdio.h>
#include <string.h>

static int count_devices(const struct contract *c)
{
	int count = 0;

	drive_ok(bnet_client_devices(&c->client, &count));
	return count;
}

static int merge(const struct contract *c, const int *devs, int ndevs)
{
	int dev = -1;

	drive_ok(bnet_client_make_v_device(&c->client, devs, ndevs, &dev));
	return dev;
}

/* The merged device has the names and the summed speed of both, and their numbers as its vProps. They do not change. */
static void check_merged(const struct contract *c, int merged)
{
	ncclNetProperties_v12_t before[2], props;
	char name[256];

	for (int dev = 0; dev < 2; dev++)
		drive_ok(bnet_client_properties(&c->client, dev, &before[dev]));
	drive_ok(bnet_client_properties(&c->client, merged, &props));
	snprintf(name, sizeof(name), "%s+%s", before[0].name, before[1].name);
	drive_check(strcmp(props.name, name) == 0, "it is called %s, not %s", props.name, name);
	drive_check(props.speed == before[0].speed + before[1].speed, "its speed is %d", props.speed);
	drive_check(props.vProps.ndevs == 2 && props.vProps.devs[0] == 0 && props.vProps.devs[1] == 1, "its vProps");
	for (int dev = 0; dev < 2; dev++)
		drive_check(before[dev].vProps.ndevs == 1 && before[dev].vProps.devs[0] == dev, "device %d: vProps",
			    dev);
}

/* NCCL merges two devices into one, and listens and connects on it. A single device is merged into itself. */
static void merged_device(struct contract *c)
{
	const int devs[] = {0, 1};
	struct pair pair;
	int count, first;

	contract_load(c);
	count = count_devices(c);
	first = merge(c, devs, count > 1 ? 2 : 1);
	drive_check(merge(c, devs, count > 1 ? 2 : 1) == first, "merging the same devices again gives another one");
	if (count > 1) {
		drive_check(first == count, "the new device is %d of %d", first, count);
		drive_check(count_devices(c) == count + 1, "there are %d devices", count_devices(c));
		check_merged(c, first);
	} else {
		drive_check(first == 0 && count_devices(c) == 1, "device %d of %d", first, count_devices(c));
	}
	c->device = first;
	pair = contract_pair(c);
	for (size_t size = 0; size < 20000000; size = 3 * size + 4097)
		contract_exchange(c, pair, size);
	contract_close_pair(c, pair);
	contract_finalize(c);
	drive_check(drive_log_count(NCCL_LOG_WARN) == 0, "it warns");
}

static void refuse(struct contract *c, const int *devs, int ndevs, const char *text)
{
	int count = count_devices(c), lines = drive_log_count(NCCL_LOG_WARN), dev;

	drive_check(bnet_client_make_v_device(&c->client, devs, ndevs, &dev) == ncclInvalidArgument, "%s: accepted",
		    text);
	drive_check(drive_log_count(NCCL_LOG_WARN) == lines + 1, "%s: not exactly one line", text);
	drive_check(drive_log_has(NCCL_LOG_WARN, "asked to merge", text), "%s: the line does not name it", text);
	drive_check(count_devices(c) == count, "%s: there is a new device", text);
}

/* Each refusal costs one line that names the fault, and makes no device. */
static void merge_refused(struct contract *c)
{
	const int none[] = {0, 987}, negative[] = {-5}, twice[] = {0, 0}, many[9] = {0};
	int most = c->source.api >= 12 ? 8 : 4;
	char text[32];

	contract_load(c);
	refuse(c, none, 2, "device 987");
	refuse(c, negative, 1, "device -5");
	refuse(c, twice, 2, "in common");
	refuse(c, many, 0, "merge 0 devices");
	refuse(c, many, -3, "merge -3 devices");
	snprintf(text, sizeof(text), "merge %d devices", most + 1);
	refuse(c, many, most + 1, text);
	contract_close_pair(c, contract_pair(c));
	contract_finalize(c);
}

const struct scenario contract_devices_scenarios[] = {
	{"merged_device", merged_device, NULL, 9},
	{"merge_refused", merge_refused, NULL, 9},
	{NULL, NULL, NULL, 0},
};
