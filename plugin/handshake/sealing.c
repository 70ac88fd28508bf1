/* SPDX-License-Identifier: MIT
 *
 * See sealing.h.
 */
#include "handshake/sealing.h"

#include <errno.h>
#include <string.h>

#include "base/crypto.h"
#include "base/secret.h"
#include "engine/engine.h"

uint32_t bnet_sealing_features(void)
{
	uint32_t features = bnet_secret_is_set() ? BNET_WIRE_FEATURE_SECRET : 0;

	if (!bnet_engine.config.encrypt)
		return features;
	return features | BNET_WIRE_FEATURE_ENCRYPT | (bnet_cipher_aes_is_fast() ? BNET_WIRE_FEATURE_AES : 0);
}

bool bnet_sealing_agrees(uint32_t peer_features)
{
	return !((peer_features ^ bnet_sealing_features()) & BNET_WIRE_FEATURE_ENCRYPT);
}

const char *bnet_sealing_mismatch(void)
{
	return bnet_engine.config.encrypt ? "BAGUA_NET_ENCRYPT=1 is set for this process, and not there"
					  : "BAGUA_NET_ENCRYPT=1 is set there, and not for this process";
}

int bnet_sealing_start(const struct bnet_sealing *sealing, struct bnet_seal **out)
{
	struct bnet_seal_origin origin = {
		.aes = bnet_sealing_features() & sealing->peer_features & BNET_WIRE_FEATURE_AES,
		.connection = sealing->conn->id,
		.serial = sealing->serial,
	};

	*out = NULL;
	if (!bnet_engine.config.encrypt)
		return 0;
	memcpy(origin.token, sealing->conn->token, sizeof(origin.token));
	memcpy(origin.hello, sealing->hello, sizeof(origin.hello));
	memcpy(origin.challenge, sealing->challenge, sizeof(origin.challenge));
	*out = bnet_seal_new(&origin, sealing->conn->sender);
	return *out ? 0 : -ENOMEM;
}
