/* SPDX-License-Identifier: MIT
 *
 * See secret.h.
 */
#include "base/secret.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/crypto.h"
#include "common/kernel.h"

#define VARIABLE "BAGUA_NET_SECRET_FILE"

static struct bnet_secret loaded;

__attribute__((format(printf, 5, 6))) static int refuse(int rc, const char *path, char *err, size_t err_size,
							const char *format, ...)
{
	char why[256];
	va_list args;

	va_start(args, format);
	vsnprintf(why, sizeof(why), format, args);
	va_end(args);
	snprintf(err, err_size, VARIABLE "=%s: %s", path, why);
	return rc;
}

/* A secret of Kubernetes belongs to root, and with fsGroup its group may read it. Whoever else owns it could change it.
 * What stands behind the semicolon is what to do. */
static int check(const char *path, const struct stat *status, char *err, size_t err_size)
{
	const unsigned mode = status->st_mode & 07777;

	if (!S_ISREG(status->st_mode))
		return refuse(-EINVAL, path, err, err_size, "it is no regular file; name the file that has the secret");
	if (status->st_uid != 0 && status->st_uid != geteuid())
		return refuse(-EPERM, path, err, err_size,
			      "it belongs to user %u, who could change it; chown it to root or to user %u",
			      (unsigned)status->st_uid, (unsigned)geteuid());
	if (mode & 07)
		return refuse(-EPERM, path, err, err_size,
			      "every user of this host can read or write it (mode %04o); chmod 600 it, and for a secret of "
			      "Kubernetes set defaultMode: 0400, or 0440 with fsGroup",
			      mode);
	if (mode & 020 || (mode & 040 && status->st_uid != 0))
		return refuse(-EPERM, path, err, err_size, "its group can %s it (mode %04o); chmod 600 it",
			      mode & 020 ? "write" : "read", mode);
	return 0;
}

/* Of a file on a network, or in /proc, a call may return less than there is. */
static ssize_t read_all(int fd, uint8_t *out, size_t size)
{
	size_t got = 0;

	while (got < size) {
		ssize_t n = read(fd, out + got, size - got);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		if (n == 0)
			break;
		got += (size_t)n;
	}
	return (ssize_t)got;
}

static int take(int fd, const char *path, struct bnet_secret *out, char *err, size_t err_size)
{
	struct stat status;
	uint8_t more;
	ssize_t size;
	int rc = fstat(fd, &status) < 0 ? -errno : 0;

	if (rc < 0)
		return refuse(rc, path, err, err_size, "%s", strerror(-rc));
	rc = check(path, &status, err, err_size);
	if (rc < 0)
		return rc;
	size = read_all(fd, out->bytes, sizeof(out->bytes));
	if (size < 0)
		return refuse((int)size, path, err, err_size, "%s", strerror((int)-size));
	if ((size_t)size == sizeof(out->bytes) && read_all(fd, &more, 1) != 0)
		return refuse(-EFBIG, path, err, err_size, "it has more than %d bytes; a secret has 32 or so",
			      BNET_SECRET_MAX);
	while (size > 0 && (out->bytes[size - 1] == '\n' || out->bytes[size - 1] == '\r'))
		size--;
	if (size < BNET_SECRET_MIN)
		return refuse(-EINVAL, path, err, err_size,
			      "it has %zd bytes, and %d are the least; `openssl rand -base64 32` makes a secret", size,
			      BNET_SECRET_MIN);
	out->size = (size_t)size;
	return 0;
}

int bnet_secret_read(const char *path, struct bnet_secret *out, char *err, size_t err_size)
{
	/* Not to wait where it is a pipe. */
	const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	int rc = -errno;

	out->size = 0;
	if (fd < 0)
		return refuse(rc, path, err, err_size, "%s; %s", strerror(-rc),
			      rc == -EACCES
				      ? "it must belong to the user of the job, or its group must have it from root"
				      : "put the job's secret there, on every host");
	rc = take(fd, path, out, err, err_size);
	close(fd);
	return rc;
}

static int use(const char *path, struct bnet_secret *out, char *err, size_t err_size)
{
	char why[192];
	int rc = bnet_crypto_load(why, sizeof(why));

	if (rc < 0)
		return refuse(
			rc, path, err, err_size,
			"it needs OpenSSL 3's libcrypto (%s); install it (Debian, Ubuntu: libssl3; RHEL: openssl-libs)",
			why);
	return bnet_secret_read(path, out, err, err_size);
}

int bnet_secret_load(const char *path, char *err, size_t err_size)
{
	loaded.size = 0;
	return path[0] ? use(path, &loaded, err, err_size) : 0;
}

int bnet_secret_check(const char *path, char *err, size_t err_size)
{
	struct bnet_secret secret;
	int rc = path[0] ? use(path, &secret, err, err_size) : 0;

	bnet_wipe(&secret, sizeof(secret));
	return rc;
}

bool bnet_secret_is_set(void)
{
	return loaded.size > 0;
}

const struct bnet_secret *bnet_secret(void)
{
	return &loaded;
}
