/* SPDX-License-Identifier: MIT
 *
 * See crypto.h.
 */
#include "base/crypto.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define LIBRARY "libcrypto.so.3"

/* What is used of it, with the types of OpenSSL's headers, which a build does not need. */
static struct {
	int (*init)(uint64_t options, const void *settings);
	const void *(*sha256)(void);
	unsigned char *(*hmac)(const void *digest, const void *key, int key_size, const unsigned char *data,
			       size_t size, unsigned char *out, unsigned *out_size);
	int (*random)(unsigned char *out, int size);
	int (*compare)(const void *a, const void *b, size_t size);
} crypto;

static const struct {
	const char *name;
	void **function;
} symbols[] = {
	{"OPENSSL_init_crypto", (void **)&crypto.init},
	{"EVP_sha256", (void **)&crypto.sha256},
	{"HMAC", (void **)&crypto.hmac},
	{"RAND_bytes", (void **)&crypto.random},
	{"CRYPTO_memcmp", (void **)&crypto.compare},
};

/* Held for reading by every call; for writing once, by the handler. */
static pthread_rwlock_t in_use = PTHREAD_RWLOCK_INITIALIZER;
static bool ended;
static pid_t loaded_by;

/* Registered after OpenSSL's own handler, so that it runs before. A child may have inherited the lock from a thread that
 * is not there. */
static void at_exit(void)
{
	if (getpid() != loaded_by)
		return;
	pthread_rwlock_wrlock(&in_use);
	ended = true;
	pthread_rwlock_unlock(&in_use);
}

static bool begin(void)
{
	pthread_rwlock_rdlock(&in_use);
	if (ended)
		pthread_rwlock_unlock(&in_use);
	return !ended;
}

static int end(int rc)
{
	pthread_rwlock_unlock(&in_use);
	return rc;
}

int bnet_crypto_load(char *why, size_t why_size)
{
	void *library;

	if (loaded_by)
		return 0;
	library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
	if (!library) {
		snprintf(why, why_size, "%s", dlerror());
		return -ELIBACC;
	}
	for (size_t i = 0; i < sizeof(symbols) / sizeof(symbols[0]); i++) {
		*symbols[i].function = dlsym(library, symbols[i].name);
		if (!*symbols[i].function) {
			snprintf(why, why_size, LIBRARY " lacks %s", symbols[i].name);
			dlclose(library);
			return -ELIBACC;
		}
	}
	if (!crypto.init(0, NULL) || atexit(at_exit) != 0) {
		snprintf(why, why_size, LIBRARY " does not start");
		return -ELIBACC;
	}
	loaded_by = getpid();
	return 0;
}

int bnet_crypto_hmac(const uint8_t *key, size_t key_size, const uint8_t *data, size_t size,
		     uint8_t out[BNET_SHA256_SIZE])
{
	unsigned out_size = 0;

	if (!begin())
		return -ECANCELED;
	if (!crypto.hmac(crypto.sha256(), key, (int)key_size, data, size, out, &out_size) ||
	    out_size != BNET_SHA256_SIZE)
		return end(-ENOMEM);
	return end(0);
}

int bnet_crypto_random(uint8_t *out, size_t size)
{
	if (!begin())
		return -ECANCELED;
	return end(crypto.random(out, (int)size) == 1 ? 0 : -EIO);
}

bool bnet_crypto_equal(const uint8_t *a, const uint8_t *b, size_t size)
{
	if (!begin())
		return false;
	return end(crypto.compare(a, b, size)) == 0;
}
