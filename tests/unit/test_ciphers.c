/* SPDX-License-Identifier: MIT
 *
 * Which cipher both ends take, by what their processors have and what their OpenSSL allows.
 */
#include <errno.h>

#include "base/crypto.h"
#include "check.h"
#include "engine/engine.h"
#include "handshake/sealing.h"

static bool fast, allowed[2];

bool __wrap_bnet_cipher_aes_is_fast(void);
bool __wrap_bnet_cipher_is_available(enum bnet_cipher_kind kind);

bool __wrap_bnet_cipher_aes_is_fast(void)
{
	return fast;
}

bool __wrap_bnet_cipher_is_available(enum bnet_cipher_kind kind)
{
	return allowed[kind];
}

static bool takes_aes(bool is_fast, bool has_aes, bool has_chacha)
{
	fast = is_fast;
	allowed[BNET_CIPHER_AES_128_GCM] = has_aes;
	allowed[BNET_CIPHER_CHACHA20_POLY1305] = has_chacha;
	return bnet_sealing_features() & BNET_WIRE_FEATURE_AES;
}

static void aes_is_taken_where_it_is_fast_or_the_only_one(void)
{
	check(takes_aes(true, true, true));
	check(!takes_aes(false, true, true));
	check(takes_aes(false, true, false)); /* FIPS */
	check(!takes_aes(true, false, true));
}

/* The peer's processor is slow, and its OpenSSL allows both. */
static void a_cipher_that_is_forbidden_here_is_no_lack_of_memory(void)
{
	static const struct bnet_conn conn;
	const struct bnet_sealing sealing = {.conn = &conn, .peer_features = BNET_WIRE_FEATURE_ENCRYPT};
	struct bnet_seal *seal;

	check(takes_aes(true, true, false));
	check_int(bnet_sealing_start(&sealing, &seal), -ENOPKG);
	check(!seal);
}

int main(void)
{
	bnet_engine.config.encrypt = true;
	aes_is_taken_where_it_is_fast_or_the_only_one();
	a_cipher_that_is_forbidden_here_is_no_lack_of_memory();
	return 0;
}
