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

int main(void)
{
	test_traffic();
	return 0;
}
