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

#define SEALS (BNET_WIRE_FEATURE_ENCRYPT | BNET_WIRE_FEATURE_CHECKSUM)

/* It is where the processor has instructions for it, or where there is no other. */
static bool prefers_aes(void)
{
	return bnet_cipher_is_available(BNET_CIPHER_AES_128_GCM) &&
	       (bnet_cipher_aes_is_fast() || !bnet_cipher_is_available(BNET_CIPHER_CHACHA20_POLY1305));
}

uint32_t bnet_sealing_features(void)
{
	uint32_t features = bnet_secret_is_set() ? BNET_WIRE_FEATURE_SECRET : 0;

	if (bnet_engine.config.encrypt)
		features |= BNET_WIRE_FEATURE_ENCRYPT | (prefers_aes() ? BNET_WIRE_FEATURE_AES : 0);
	else if (bnet_engine.config.checksum)
		features |= BNET_WIRE_FEATURE_CHECKSUM;
	return features;
}

bool bnet_sealing_agrees(uint32_t peer_features)
{
	return !((peer_features ^ bnet_sealing_features()) & SEALS);
}

const char *bnet_sealing_mismatch(uint32_t peer_features)
{
	if ((peer_features ^ bnet_sealing_features()) & BNET_WIRE_FEATURE_ENCRYPT)
		return bnet_engine.config.encrypt
			       ? "BAGUA_NET_ENCRYPT=1 is set for this process, and not there: give every process of the job the same"
			       : "BAGUA_NET_ENCRYPT=1 is set there, and not for this process: give every process of the job the same";
	return bnet_engine.config.checksum
		       ? "BAGUA_NET_CHECKSUM=1 is set for this process, and not there: give every process of the job the same"
		       : "BAGUA_NET_CHECKSUM=1 is set there, and not for this process: give every process of the job the same";
}

int bnet_sealing_start(const struct bnet_sealing *sealing, struct bnet_seal **out)
{
	const uint32_t both = bnet_sealing_features() & sealing->peer_features;
	struct bnet_seal_origin origin = {
		.kind = both & BNET_WIRE_FEATURE_CHECKSUM ? BNET_SEAL_CHECKSUM
			: both & BNET_WIRE_FEATURE_AES    ? BNET_SEAL_AES_128_GCM
							  : BNET_SEAL_CHACHA20_POLY1305,
		.connection = sealing->conn->id,
		.serial = sealing->serial,
	};

	*out = NULL;
	if (!(both & SEALS))
		return 0;
	if (origin.kind == BNET_SEAL_CHACHA20_POLY1305 && !bnet_cipher_is_available(BNET_CIPHER_CHACHA20_POLY1305))
		return -ENOPKG;
	memcpy(origin.token, sealing->conn->token, sizeof(origin.token));
	if (both & BNET_WIRE_FEATURE_ENCRYPT) {
		memcpy(origin.hello, sealing->hello, sizeof(origin.hello));
		memcpy(origin.challenge, sealing->challenge, sizeof(origin.challenge));
	}
	*out = bnet_seal_new(&origin, sealing->conn->sender);
	return *out ? 0 : -ENOMEM;
}
