/* SPDX-License-Identifier: MIT
 *
 * OpenSSL 3's libcrypto, loaded when a secret is set: without one the plugin needs only libc. Any thread. Fails with
 * -ECANCELED once the process exits, since OpenSSL's own handler then frees what these calls use, while threads of the
 * plugin still run.
 */
#ifndef BNET_CRYPTO_H
#define BNET_CRYPTO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BNET_SHA256_SIZE 32

/* 0; -ELIBACC: there is no libcrypto.so.3, or it lacks something, and why has the loader's reason. */
int bnet_crypto_load(char *why, size_t why_size);
/* HMAC-SHA-256 (RFC 2104). After bnet_crypto_load. 0; -ENOMEM; -ECANCELED. */
int bnet_crypto_hmac(const uint8_t *key, size_t key_size, const uint8_t *data, size_t size,
		     uint8_t out[BNET_SHA256_SIZE]);
/* From OpenSSL's generator. 0; -EIO: it has no entropy; -ECANCELED. */
int bnet_crypto_random(uint8_t *out, size_t size);
/* In a time that does not depend on where they differ. */
bool bnet_crypto_equal(const uint8_t *a, const uint8_t *b, size_t size);

#endif
