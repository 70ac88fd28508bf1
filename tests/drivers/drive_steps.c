/* SPDX-License-Identifier: MIT
 *
 * One end of a connection that does what its standard input says, a line at a time, and answers each line with one on
 * standard output; between them it makes no call. The test decides when what happens:
 *
 *   listen         handle HEX         to be given to the other end
 *   connect HEX    ok                 once connected: this end sends
 *   accept         ok                 … and this end receives; it listens no longer
 *   accept more    ok                 … and it listens on
 *   post SIZE      posted N | error CODE | later      the next message, N = 0, 1, …
 *   wait N         done | error CODE  tests until it is either; a received message is checked
 *   close          ok
 *   counters       rejected N unverified N     of the process, so far
 *
 * CODE is an ncclResult_t. Single-threaded. The library's log goes to standard error.
 */
#include "bagua_net.h"
#include "drive_base.h"

#include <dlfcn.h>
#include <getopt.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MOST 1000 /* messages of a connection */
#define LINE (2 * NCCL_NET_HANDLE_MAXSIZE + 64)

struct message {
	unsigned char *data;
	size_t size;
	void *mhandle;
	void *request;
};

struct end {
	struct bnet_client client;
	void *library;
	void *listen_comm;
	void *comm;
	bool sender;
	int count;
	struct message messages[MOST];
};

static struct drive_stamp stamp_of(int message)
{
	return (struct drive_stamp){.sender = 1, .connection = 2, .message = (uint64_t)message};
}

/* ---- the connection ---- */

static void do_listen(struct end *end)
{
	unsigned char handle[NCCL_NET_HANDLE_MAXSIZE] = {0};

	drive_ok(bnet_client_listen(&end->client, 0, handle, &end->listen_comm));
	printf("handle ");
	for (size_t i = 0; i < sizeof(handle); i++)
		printf("%02x", handle[i]);
	printf("\n");
}

/* Between two looks. After the first ones, which NCCL would make without a pause, tests run beside others. */
static void pause_after(int looks)
{
	if (looks < 1000)
		sched_yield();
	else
		usleep(1000);
}

static void do_connect(struct end *end, const char *hex)
{
	unsigned char handle[NCCL_NET_HANDLE_MAXSIZE] = {0};

	drive_check(strlen(hex) == 2 * sizeof(handle), "connect %s: no handle", hex);
	for (size_t i = 0; i < sizeof(handle); i++)
		drive_check(sscanf(hex + 2 * i, "%2hhx", &handle[i]) == 1, "connect %s: not hexadecimal", hex);
	end->sender = true;
	for (int looks = 0; !end->comm; looks++) {
		drive_ok(bnet_client_connect(&end->client, 0, handle, &end->comm));
		pause_after(looks);
	}
	printf("ok\n");
}

static void do_accept(struct end *end, bool listens_on)
{
	for (int looks = 0; !end->comm; looks++) {
		drive_ok(bnet_client_accept(&end->client, end->listen_comm, &end->comm));
		pause_after(looks);
	}
	if (!listens_on)
		drive_ok(bnet_client_close_listen(&end->client, end->listen_comm));
	printf("ok\n");
}

static void do_close(struct end *end)
{
	for (int i = 0; i < end->count; i++) {
		drive_ok(bnet_client_dereg(&end->client, end->comm, end->messages[i].mhandle));
		munmap(end->messages[i].data, end->messages[i].size + 1);
	}
	if (end->sender)
		drive_ok(bnet_client_close_send(&end->client, end->comm));
	else
		drive_ok(bnet_client_close_recv(&end->client, end->comm));
	printf("ok\n");
}

/* ---- messages ---- */

static void do_post(struct end *end, size_t size)
{
	struct message *message = &end->messages[end->count];
	struct drive_stamp stamp = stamp_of(end->count);
	ncclResult_t result;

	drive_check(end->comm && end->count < MOST, "post: not connected, or too many messages");
	*message = (struct message){.size = size};
	message->data = mmap(NULL, size + 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (message->data == MAP_FAILED)
		drive_fail("mmap: %m");
	drive_ok(bnet_client_reg(&end->client, end->comm, message->data, size, NCCL_PTR_HOST, &message->mhandle));
	if (end->sender)
		drive_fill(message->data, size, &stamp);
	result = end->sender ? bnet_client_isend(&end->client, end->comm, message->data, size, 0, message->mhandle,
						 &message->request)
			     : bnet_client_irecv(&end->client, end->comm, message->data, size, 0, message->mhandle,
						 &message->request);
	if (result != ncclSuccess)
		printf("error %d\n", (int)result);
	else if (message->request)
		printf("posted %d\n", end->count);
	else
		printf("later\n");
	end->count++;
}

static void do_wait(struct end *end, int number)
{
	const struct drive_stamp stamp = stamp_of(number);
	const struct message *message = &end->messages[number];
	int done = 0, size = -1;

	drive_check(number >= 0 && number < end->count && message->request, "wait %d: not posted", number);
	for (int looks = 0; !done; looks++) {
		ncclResult_t result = bnet_client_test(&end->client, message->request, &done, &size);

		if (result != ncclSuccess) {
			printf("error %d\n", (int)result);
			return;
		}
		pause_after(looks);
	}
	drive_check(size == (int)message->size, "message %d: %d bytes", number, size);
	drive_check(drive_mismatch(message->data, message->size, &stamp) < 0, "message %d came out wrong", number);
	printf("done\n");
}

static void do_counters(const struct end *end)
{
	void (*read_counters)(bnet_counters_t *) =
		(void (*)(bnet_counters_t *))(uintptr_t)dlsym(end->library, "bnet_counters");
	bnet_counters_t counters;

	drive_check(read_counters, "the library has no bnet_counters");
	read_counters(&counters);
	printf("rejected %llu unverified %llu\n", (unsigned long long)counters.rejected,
	       (unsigned long long)counters.unverified);
}

static void obey(struct end *end, char *line)
{
	char *argument = strchr(line, ' ');

	if (argument)
		*argument++ = '\0';
	if (strcmp(line, "listen") == 0)
		do_listen(end);
	else if (strcmp(line, "connect") == 0 && argument)
		do_connect(end, argument);
	else if (strcmp(line, "accept") == 0)
		do_accept(end, argument != NULL);
	else if (strcmp(line, "post") == 0 && argument)
		do_post(end, strtoul(argument, NULL, 10));
	else if (strcmp(line, "wait") == 0 && argument)
		do_wait(end, atoi(argument));
	else if (strcmp(line, "close") == 0)
		do_close(end);
	else if (strcmp(line, "counters") == 0)
		do_counters(end);
	else
		drive_fail("%s: not a step", line);
	fflush(stdout);
}

/* ---- main ---- */

static void on_alarm(int signal)
{
	static const char text[] = "FAILED: hangs\n";

	(void)signal;
	_exit(write(2, text, sizeof(text) - 1) < 0 ? 3 : 2);
}

int main(int argc, char **argv)
{
	static const struct option options[] = {
		{"lib", required_argument, NULL, 'l'},
		{"deadline", required_argument, NULL, 't'},
		{NULL, 0, NULL, 0},
	};
	struct drive_source source = {.api = 12};
	struct end end = {.listen_comm = NULL};
	char line[LINE];
	int option;

	while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
		drive_check(option == 'l' || option == 't', "see the table of options in %s", __FILE_NAME__);
		if (option == 'l')
			source.path = optarg;
		else
			alarm((unsigned)atoi(optarg));
	}
	drive_check(source.path, "--lib PATH is missing");
	signal(SIGALRM, on_alarm);
	drive_log_verbose(true);
	drive_ok(bnet_client_init(&end.client, drive_open(&source, &end.library), source.api, drive_logger));
	while (fgets(line, sizeof(line), stdin)) {
		line[strcspn(line, "\n")] = '\0';
		obey(&end, line);
	}
	drive_ok(bnet_client_finalize(&end.client));
	return 0;
}
