/* SPDX-License-Identifier: MIT
 *
 * The file of the secret: whose it is, who else can read it, what is in it.
 */
#include "base/secret.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "check.h"

#define TEXT "0123456789abcdef"

static char directory[] = "/tmp/bnet-secret-XXXXXX";
static char file[64], other[64];
static struct bnet_secret secret;
static char line[BNET_SECRET_LINE];

static void write_file(const void *bytes, size_t size)
{
	int fd = open(file, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

	check(fd >= 0);
	check_int(write(fd, bytes, size), (long long)size);
	close(fd);
	check_int(chmod(file, 0600), 0);
}

static int read_it(const char *path)
{
	memset(&secret, 1, sizeof(secret));
	line[0] = 0;
	return bnet_secret_read(path, &secret, line, sizeof(line));
}

/* One line that names the variable, the file, and what is wrong. */
static void refused(const char *path, int rc, const char *why)
{
	check_int(read_it(path), rc);
	if (!strstr(line, why))
		fprintf(stderr, "no \"%s\" in: %s\n", why, line);
	check(strstr(line, why) && strstr(line, "BAGUA_NET_SECRET_FILE=") && strstr(line, path));
	check_int(secret.size, 0);
}

static void taken(const char *path, const char *text)
{
	if (read_it(path) != 0)
		fprintf(stderr, "%s\n", line);
	check_int(secret.size, strlen(text));
	check(memcmp(secret.bytes, text, secret.size) == 0);
}

static void what_is_in_it(void)
{
	static char large[BNET_SECRET_MAX + 1];

	write_file(TEXT, 16);
	taken(file, TEXT);
	write_file(TEXT "\n", 17);
	taken(file, TEXT);
	write_file(TEXT "\r\n\n", 19);
	taken(file, TEXT);
	write_file(TEXT "\n ", 18); /* a blank is a character */
	taken(file, TEXT "\n ");
	write_file("0123456789abcde\n", 16);
	refused(file, -EINVAL, "it has 15 bytes, and 16 are the least");
	write_file("", 0);
	refused(file, -EINVAL, "it has 0 bytes");
	memset(large, 'x', sizeof(large));
	write_file(large, BNET_SECRET_MAX);
	check_int(read_it(file), 0);
	check_int(secret.size, BNET_SECRET_MAX);
	write_file(large, sizeof(large));
	refused(file, -EFBIG, "more than 4096 bytes");
	write_file(TEXT, 16);
}

static void with_mode(mode_t mode, int rc, const char *why)
{
	check_int(chmod(file, mode), 0);
	if (rc)
		refused(file, rc, why);
	else
		taken(file, TEXT);
}

static void who_can_read_it(void)
{
	with_mode(0600, 0, NULL);
	with_mode(0400, 0, NULL);
	with_mode(0604, -EPERM, "every user of this host can read or write it (mode 0604); chmod 600");
	with_mode(0602, -EPERM, "defaultMode: 0400, or 0440 with fsGroup");
	with_mode(0644, -EPERM, "(mode 0644)");
	with_mode(0620, -EPERM, "its group can write it (mode 0620); chmod 600 it");
	if (geteuid() != 0) {
		with_mode(0440, -EPERM, "its group can read it");
		check_int(chmod(file, 0600), 0);
		return;
	}
	with_mode(0440, 0, NULL); /* as Kubernetes does with fsGroup */
	check_int(chmod(file, 0400), 0);
	check_int(chown(file, 1000, 1000), 0);
	refused(file, -EPERM, "it belongs to user 1000");
	check_int(seteuid(1000), 0);
	taken(file, TEXT);
	check_int(chmod(file, 0440), 0);
	refused(file, -EPERM, "its group can read it (mode 0440)");
	check_int(seteuid(0), 0);
	check_int(chown(file, 0, 0), 0);
	check_int(chmod(file, 0600), 0);
}

static void what_is_no_file(void)
{
	refused("/nonexistent/secret", -ENOENT, "No such file");
	refused(directory, -EINVAL, "no regular file");
	refused("/dev/zero", -EINVAL, "no regular file");
	check_int(mkfifo(other, 0600), 0);
	refused(other, -EINVAL, "no regular file"); /* at once, though nobody writes there */
	unlink(other);
	check_int(symlink(file, other), 0); /* as Kubernetes does */
	taken(other, TEXT);
	unlink(other);
}

int main(void)
{
	check(mkdtemp(directory));
	check_int(chmod(directory, 0755), 0);
	snprintf(file, sizeof(file), "%s/secret", directory);
	snprintf(other, sizeof(other), "%s/other", directory);
	what_is_in_it();
	who_can_read_it();
	what_is_no_file();
	unlink(file);
	rmdir(directory);
	return 0;
}
