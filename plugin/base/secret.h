/* SPDX-License-Identifier: MIT
 *
 * The secret that the processes of a job share: a file's content (BAGUA_NET_SECRET_FILE). Any thread may use it once it
 * is loaded.
 */
#ifndef BNET_SECRET_H
#define BNET_SECRET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A brute force of shorter ones is no more than a matter of money: 128 bits, if they are random bytes. */
#define BNET_SECRET_MIN 16
#define BNET_SECRET_MAX 4096

struct bnet_secret {
	size_t size; /* 0: none is set */
	uint8_t bytes[BNET_SECRET_MAX];
};

#define BNET_SECRET_LINE 512 /* holds every error line */

/* Reads a file that only its user, or the group of a file of root's, can read; line breaks at its end do not count. 0,
 * or -errno with one line in err: the variable, the file, what is wrong, what to do. */
int bnet_secret_read(const char *path, struct bnet_secret *out, char *err, size_t err_size);
/* The process's own; an empty path: none. Needs libcrypto. 0, or -errno with one line in err. */
int bnet_secret_load(const char *path, char *err, size_t err_size);
/* Whether the process's own could be loaded so, which it is not. The same results. */
int bnet_secret_check(const char *path, char *err, size_t err_size);
bool bnet_secret_is_set(void);
const struct bnet_secret *bnet_secret(void);

#endif
