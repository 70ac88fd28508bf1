/* SPDX-License-Identifier: MIT */
#include "bagua_net_host.h"

#define ABI_VERSION 3

int bnet_host_abi_version(void)
{
	return ABI_VERSION;
}
