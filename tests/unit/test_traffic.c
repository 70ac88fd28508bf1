/* SPDX-License-Identifier: MIT
 *
 * What a device has carried, as the kernel counts it.
 */
#include "check.h"
#include "device/traffic.h"

static uint64_t statistic(const char *name)
{
	char path[64];
	unsigned long long value = 0;
	FILE *file;

	snprintf(path, sizeof(path), "/sys/class/net/lo/statistics/%s", name);
	file = fopen(path, "r");
	check(file && fscanf(file, "%llu", &value) == 1);
	fclose(file);
	return value;
}

static void test_traffic(void)
{
	const struct bnet_nic lo = {.name = "lo"}, none = {.name = "none"};
	struct bnet_device device = {.nmembers = 1, .members = {&lo}};
	uint64_t sent = statistic("tx_bytes"), received = statistic("rx_bytes");
	struct bnet_traffic traffic = bnet_device_traffic(&device);

	check(traffic.sent >= sent && traffic.sent <= statistic("tx_bytes"));
	check(traffic.received >= received && traffic.received <= statistic("rx_bytes"));
	device.members[device.nmembers++] = &none;
	traffic = bnet_device_traffic(&device);
	check(traffic.sent == 0 && traffic.received == 0);
}

/* Each has what is its own. */
static void test_several(void)
{
	const struct bnet_nic lo = {.name = "lo"}, none = {.name = "none"}, passive = {.name = "lo", .passive = true};
	const struct bnet_device devices[] = {{.nmembers = 1, .members = {&none}},
					      {.nmembers = 1, .members = {&lo}},
					      {.nmembers = 1, .members = {&passive}}};
	uint64_t sent = statistic("tx_bytes");
	struct bnet_traffic traffic[3];

	bnet_devices_traffic(devices, 3, traffic);
	check(traffic[0].sent == 0 && traffic[2].sent == 0);
	check(traffic[1].sent >= sent && traffic[1].sent <= statistic("tx_bytes"));
}

int main(void)
{
	test_traffic();
	test_several();
	return 0;
}
