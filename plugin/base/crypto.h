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
/* At exit, `first` is called before these functions begin to fail. NULL: nothing is called. */
void bnet_crypto_at_exit(void (*first)(void));
/* Frees what OpenSSL keeps for the calling thread, a thread of the plugin that is about to end, so that its own destructor
 * finds nothing. False: the process exits. That destructor and OpenSSL's handler might then free the same: the thread must
 * stay, in bnet_crypto_stay, until the process is over. */
bool bnet_crypto_end_thread(void);
/* Does not return. Not under a lock. */
_Noreturn void bnet_crypto_stay(void);
/* Does the process exit? From then on these functions fail, and threads of the plugin stay. */
bool bnet_crypto_is_over(void);
/* HMAC-SHA-256 (RFC 2104). After bnet_crypto_load. 0; -ENOMEM; -ECANCELED. */
int bnet_crypto_hmac(const uint8_t *key, size_t key_size, const uint8_t *data, size_t size,
		     uint8_t out[BNET_SHA256_SIZE]);
/* From OpenSSL's generator. 0; -EIO: it has no entropy; -ECANCELED. */
int bnet_crypto_random(uint8_t *out, size_t size);
/* HKDF-SHA-256 (RFC 5869), extract and expand. 0; -ENOMEM; -ECANCELED. */
struct bnet_crypto_bytes {
	const void *bytes;
	size_t size;
};
int bnet_crypto_hkdf(struct bnet_crypto_bytes key, struct bnet_crypto_bytes salt, struct bnet_crypto_bytes info,
		     uint8_t *out, size_t size);
/* In a time that does not depend on where they differ. */
bool bnet_crypto_equal(const uint8_t *a, const uint8_t *b, size_t size);

/* ---- authenticated encryption (RFC 5116, RFC 8439) ---- */

#define BNET_CIPHER_KEY_MAX 32
#define BNET_CIPHER_NONCE 12
#define BNET_CIPHER_TAG 16

enum bnet_cipher_kind {
	BNET_CIPHER_AES_128_GCM,
	BNET_CIPHER_CHACHA20_POLY1305,
};

size_t bnet_cipher_key_size(enum bnet_cipher_kind kind);
/* Has this processor instructions for AES and GCM? Without them ChaCha20 is several times as fast. */
bool bnet_cipher_aes_is_fast(void);
/* Does OpenSSL's configuration allow it? After bnet_crypto_load. */
bool bnet_cipher_is_available(enum bnet_cipher_kind kind);

/* One key, in one direction. One thread at a time. */
struct bnet_cipher;
/* NULL: no memory, or the process exits. */
struct bnet_cipher *bnet_cipher_new(enum bnet_cipher_kind kind, bool seals);
void bnet_cipher_free(struct bnet_cipher *cipher);
int bnet_cipher_set_key(struct bnet_cipher *cipher, const uint8_t *key);
/* Both parts, one after the other, into out, and then the tag. known: authenticated, and not encrypted. 0; -EIO. */
int bnet_cipher_seal(struct bnet_cipher *cipher, const uint8_t nonce[BNET_CIPHER_NONCE], struct bnet_crypto_bytes known,
		     struct bnet_crypto_bytes first, struct bnet_crypto_bytes second, uint8_t *out);
/* Decrypts `size` bytes in place, behind which the tag stands. 0; -EBADMSG: it does not verify, and what stands there
 * is nothing; -ECANCELED. */
int bnet_cipher_open(struct bnet_cipher *cipher, const uint8_t nonce[BNET_CIPHER_NONCE], struct bnet_crypto_bytes known,
		     uint8_t *bytes, size_t size);

#endif
