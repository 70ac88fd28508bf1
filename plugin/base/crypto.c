/* SPDX-License-Identifier: MIT
 *
 * See crypto.h.
 */
#include "base/crypto.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
#ifdef __aarch64__
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#define LIBRARY "libcrypto.so.3"

/* A parameter of OpenSSL's: OSSL_PARAM. */
struct parameter {
	const char *name;
	unsigned type;
	void *data;
	size_t size, returned;
};
#define OCTETS 5
#define TEXT 4

/* EVP_CTRL_AEAD_… */
#define GET_TAG 0x10
#define SET_TAG 0x11

/* The functions of libcrypto that are used. Their types are repeated here, so that a build needs no OpenSSL headers. */
static struct {
	int (*init)(uint64_t options, const void *settings);
	const void *(*sha256)(void);
	unsigned char *(*hmac)(const void *digest, const void *key, int key_size, const unsigned char *data,
			       size_t size, unsigned char *out, unsigned *out_size);
	int (*random)(unsigned char *out, int size);
	void (*end_thread)(void);
	void *(*kdf_fetch)(void *context, const char *name, const char *properties);
	void (*kdf_free)(void *kdf);
	void *(*kdf_new)(void *kdf);
	void (*kdf_end)(void *kdf_context);
	int (*kdf_derive)(void *kdf_context, unsigned char *out, size_t size, const struct parameter *parameters);
	const void *(*aes_128_gcm)(void);
	const void *(*chacha20_poly1305)(void);
	void *(*cipher_new)(void);
	void (*cipher_free)(void *cipher);
	int (*cipher_init)(void *cipher, const void *kind, void *engine, const unsigned char *key,
			   const unsigned char *nonce, int encrypts);
	int (*cipher_update)(void *cipher, unsigned char *out, int *out_size, const unsigned char *in, int size);
	int (*cipher_final)(void *cipher, unsigned char *out, int *out_size);
	int (*cipher_control)(void *cipher, int what, int size, void *data);
} crypto;

static const struct {
	const char *name;
	void **function;
} symbols[] = {
	{"OPENSSL_init_crypto", (void **)&crypto.init},
	{"EVP_sha256", (void **)&crypto.sha256},
	{"HMAC", (void **)&crypto.hmac},
	{"RAND_bytes", (void **)&crypto.random},
	{"OPENSSL_thread_stop", (void **)&crypto.end_thread},
	{"EVP_KDF_fetch", (void **)&crypto.kdf_fetch},
	{"EVP_KDF_free", (void **)&crypto.kdf_free},
	{"EVP_KDF_CTX_new", (void **)&crypto.kdf_new},
	{"EVP_KDF_CTX_free", (void **)&crypto.kdf_end},
	{"EVP_KDF_derive", (void **)&crypto.kdf_derive},
	{"EVP_aes_128_gcm", (void **)&crypto.aes_128_gcm},
	{"EVP_chacha20_poly1305", (void **)&crypto.chacha20_poly1305},
	{"EVP_CIPHER_CTX_new", (void **)&crypto.cipher_new},
	{"EVP_CIPHER_CTX_free", (void **)&crypto.cipher_free},
	{"EVP_CipherInit_ex", (void **)&crypto.cipher_init},
	{"EVP_CipherUpdate", (void **)&crypto.cipher_update},
	{"EVP_CipherFinal_ex", (void **)&crypto.cipher_final},
	{"EVP_CIPHER_CTX_ctrl", (void **)&crypto.cipher_control},
};

/* Held for reading by every call; for writing once, by the handler. */
static pthread_rwlock_t in_use = PTHREAD_RWLOCK_INITIALIZER;
static atomic_bool ended; /* set before the lock is taken: calls that follow one another would keep it for ever */
static pid_t loaded_by;
static void (*before_end)(void);
static bool available[2]; /* ciphers, by kind */

void bnet_crypto_at_exit(void (*first)(void))
{
	before_end = first;
}

/* Registered after OpenSSL's own handler, so that it runs before. A call that this thread was interrupted in, by a
 * signal whose handler ends the process, never ends. */
static void at_exit(void)
{
	struct timespec until;

	if (getpid() == loaded_by && before_end)
		before_end();
	if (getpid() != loaded_by)
		return;
	atomic_store(&ended, true);
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec++;
	if (pthread_rwlock_timedwrlock(&in_use, &until) == 0)
		pthread_rwlock_unlock(&in_use);
}

/* Its other threads are gone. Also that of a process which has only looked at its parameters. */
static void in_child(void)
{
	pthread_rwlock_init(&in_use, NULL);
	loaded_by = getpid();
}

static bool begin(void)
{
	if (atomic_load(&ended))
		return false;
	pthread_rwlock_rdlock(&in_use);
	if (!atomic_load(&ended))
		return true;
	pthread_rwlock_unlock(&in_use);
	return false;
}

static int end(int rc)
{
	pthread_rwlock_unlock(&in_use);
	return rc;
}

/* A first use has OpenSSL register its handler, which bare initialization does not, and finds what a configuration
 * forbids. */
static bool works(void)
{
	uint8_t trial[BNET_SHA256_SIZE];

	return crypto.init(0, NULL) && bnet_crypto_random(trial, sizeof(trial)) == 0 &&
	       bnet_crypto_hmac(trial, sizeof(trial), trial, sizeof(trial), trial) == 0;
}

static const void *algorithm(enum bnet_cipher_kind kind)
{
	return kind == BNET_CIPHER_AES_128_GCM ? crypto.aes_128_gcm() : crypto.chacha20_poly1305();
}

/* What OpenSSL looks up at a first use it finds later as well, and a look-up that lacks memory may fail for ever: the
 * first use is here. A configuration may forbid a cipher, as FIPS does ChaCha20. */
static void warm_up(void)
{
	uint8_t trial[BNET_SHA256_SIZE];
	const struct bnet_crypto_bytes bytes = {trial, sizeof(trial)};

	(void)bnet_crypto_hkdf(bytes, bytes, bytes, trial, sizeof(trial));
	if (!begin())
		return;
	for (int kind = 0; kind < 2; kind++) {
		void *context = crypto.cipher_new();

		available[kind] = !context || crypto.cipher_init(context, algorithm((enum bnet_cipher_kind)kind), NULL,
								 NULL, NULL, 1) == 1;
		crypto.cipher_free(context);
	}
	end(0);
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
	loaded_by = getpid();
	if (!works() || atexit(at_exit) != 0 || pthread_atfork(NULL, NULL, in_child) != 0) {
		snprintf(why, why_size,
			 LIBRARY " has no HMAC-SHA-256 or random numbers: look at its configuration, openssl.cnf, and "
				 "whether there is memory");
		loaded_by = 0;
		return -ELIBACC;
	}
	warm_up();
	return 0;
}

bool bnet_crypto_is_over(void)
{
	return atomic_load(&ended);
}

bool bnet_crypto_end_thread(void)
{
	if (!loaded_by)
		return true;
	if (!begin())
		return false;
	crypto.end_thread();
	end(0);
	return true;
}

void bnet_crypto_stay(void)
{
	for (;;)
		pause();
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
	volatile uint8_t different = 0;

	for (size_t i = 0; i < size; i++)
		different |= a[i] ^ b[i];
	return different == 0;
}

/* ---- keys ---- */

static int derive(void *kdf_context, struct bnet_crypto_bytes key, struct bnet_crypto_bytes salt,
		  struct bnet_crypto_bytes info, uint8_t *out, size_t size)
{
	const struct parameter parameters[] = {
		{"digest", TEXT, (void *)(uintptr_t) "SHA256", 6, 0},
		{"key", OCTETS, (void *)(uintptr_t)key.bytes, key.size, 0},
		{"salt", OCTETS, (void *)(uintptr_t)salt.bytes, salt.size, 0},
		{"info", OCTETS, (void *)(uintptr_t)info.bytes, info.size, 0},
		{NULL, 0, NULL, 0, 0},
	};

	return kdf_context && crypto.kdf_derive(kdf_context, out, size, parameters) == 1 ? 0 : -ENOMEM;
}

int bnet_crypto_hkdf(struct bnet_crypto_bytes key, struct bnet_crypto_bytes salt, struct bnet_crypto_bytes info,
		     uint8_t *out, size_t size)
{
	void *kdf, *context;
	int rc;

	if (!begin())
		return -ECANCELED;
	kdf = crypto.kdf_fetch(NULL, "HKDF", NULL);
	context = kdf ? crypto.kdf_new(kdf) : NULL;
	rc = derive(context, key, salt, info, out, size);
	crypto.kdf_end(context);
	crypto.kdf_free(kdf);
	return end(rc);
}

/* ---- authenticated encryption ---- */

struct bnet_cipher {
	void *context;
	bool seals;
};

size_t bnet_cipher_key_size(enum bnet_cipher_kind kind)
{
	return kind == BNET_CIPHER_AES_128_GCM ? 16 : 32;
}

bool bnet_cipher_aes_is_fast(void)
{
#if defined __x86_64__
	return __builtin_cpu_supports("aes") && __builtin_cpu_supports("pclmul");
#elif defined __aarch64__
	return (getauxval(AT_HWCAP) & (HWCAP_AES | HWCAP_PMULL)) == (HWCAP_AES | HWCAP_PMULL);
#else
	return false;
#endif
}

bool bnet_cipher_is_available(enum bnet_cipher_kind kind)
{
	return available[kind];
}

struct bnet_cipher *bnet_cipher_new(enum bnet_cipher_kind kind, bool seals)
{
	struct bnet_cipher *cipher = calloc(1, sizeof(*cipher));

	if (!cipher || !begin()) {
		free(cipher);
		return NULL;
	}
	cipher->seals = seals;
	cipher->context = crypto.cipher_new();
	if (!cipher->context || crypto.cipher_init(cipher->context, algorithm(kind), NULL, NULL, NULL, seals) != 1) {
		crypto.cipher_free(cipher->context);
		free(cipher);
		cipher = NULL;
	}
	end(0);
	return cipher;
}

void bnet_cipher_free(struct bnet_cipher *cipher)
{
	if (!cipher)
		return;
	if (begin()) {
		crypto.cipher_free(cipher->context);
		end(0);
	}
	free(cipher);
}

int bnet_cipher_set_key(struct bnet_cipher *cipher, const uint8_t *key)
{
	if (!begin())
		return -ECANCELED;
	return end(crypto.cipher_init(cipher->context, NULL, NULL, key, NULL, -1) == 1 ? 0 : -EIO);
}

/* out: NULL for what is only authenticated. */
static bool update(void *context, uint8_t *out, struct bnet_crypto_bytes in)
{
	int size = 0;

	return in.size == 0 || crypto.cipher_update(context, out, &size, in.bytes, (int)in.size) == 1;
}

static bool start(void *context, const uint8_t *nonce, struct bnet_crypto_bytes known)
{
	return crypto.cipher_init(context, NULL, NULL, NULL, nonce, -1) == 1 && update(context, NULL, known);
}

static bool finish(void *context)
{
	uint8_t nothing[BNET_CIPHER_TAG];
	int size = 0;

	return crypto.cipher_final(context, nothing, &size) == 1;
}

int bnet_cipher_seal(struct bnet_cipher *cipher, const uint8_t nonce[BNET_CIPHER_NONCE], struct bnet_crypto_bytes known,
		     struct bnet_crypto_bytes first, struct bnet_crypto_bytes second, uint8_t *out)
{
	void *context = cipher->context;

	if (!begin())
		return -ECANCELED;
	if (!start(context, nonce, known) || !update(context, out, first) ||
	    !update(context, out + first.size, second) || !finish(context) ||
	    crypto.cipher_control(context, GET_TAG, BNET_CIPHER_TAG, out + first.size + second.size) != 1)
		return end(-EIO);
	return end(0);
}

int bnet_cipher_open(struct bnet_cipher *cipher, const uint8_t nonce[BNET_CIPHER_NONCE], struct bnet_crypto_bytes known,
		     uint8_t *bytes, size_t size)
{
	void *context = cipher->context;

	if (!begin())
		return -ECANCELED;
	if (!start(context, nonce, known) || !update(context, bytes, (struct bnet_crypto_bytes){bytes, size}) ||
	    crypto.cipher_control(context, SET_TAG, BNET_CIPHER_TAG, bytes + size) != 1 || !finish(context))
		return end(-EBADMSG);
	return end(0);
}
