/* SPDX-License-Identifier: MIT
 *
 * Runs one scenario by name against one table version:
 *   drive_contract --lib PATH --api N NAME        status 0 and one JSON line if the behaviour holds
 *   drive_contract --list                         the names, each with the first version that has the behaviour
 * This file owns the table of scenarios and the two processes.
 */
#include "drive_contract.h"

#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static const struct scenario *const groups[] = {
	contract_data_scenarios,     contract_connect_scenarios, contract_rejected_scenarios, contract_wire_scenarios,
	contract_streams_scenarios,  contract_options_scenarios, contract_devices_scenarios,  contract_close_scenarios,
	contract_zerocopy_scenarios, contract_process_scenarios,
};

static const struct scenario *find_scenario(const char *name)
{
	for (size_t g = 0; g < sizeof(groups) / sizeof(groups[0]); g++)
		for (const struct scenario *s = groups[g]; s->name; s++)
			if (strcmp(s->name, name) == 0)
				return s;
	drive_fail("no scenario %s; --list names them", name);
}

static void list_scenarios(void)
{
	for (size_t g = 0; g < sizeof(groups) / sizeof(groups[0]); g++)
		for (const struct scenario *s = groups[g]; s->name; s++)
			printf("%s %d\n", s->name, s->min_api ? s->min_api : 4);
}

/* ---- the two processes ---- */

static void start_peer(struct contract *c, const struct scenario *scenario, unsigned deadline)
{
	int sockets[2];

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) != 0 || pipe(c->life) != 0)
		drive_fail("cannot make a channel: %m");
	c->peer = fork();
	drive_check(c->peer >= 0, "fork: %m");
	if (c->peer) {
		close(sockets[1]);
		close(c->life[0]);
		c->control = sockets[0];
		return;
	}
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	alarm(deadline);
	drive_name("peer");
	close(sockets[0]);
	close(c->life[1]);
	c->control = sockets[1];
	scenario->peer(c);
	exit(0);
}

void contract_kill_peer(struct contract *c)
{
	kill(c->peer, SIGKILL);
	if (waitpid(c->peer, NULL, 0) != c->peer)
		drive_fail("waitpid: %m");
	c->peer = 0;
}

void contract_join_peer(struct contract *c)
{
	int status = 0;

	if (waitpid(c->peer, &status, 0) != c->peer)
		drive_fail("waitpid: %m");
	c->peer = 0;
	drive_check(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the peer ended with status %#x", (unsigned)status);
}

void contract_give(struct contract *c, const void *data, size_t size)
{
	if (send(c->control, data, size, MSG_NOSIGNAL) != (ssize_t)size)
		drive_fail("the other process is gone: %m");
}

void contract_take(struct contract *c, void *data, size_t size)
{
	if (recv(c->control, data, size, MSG_WAITALL) != (ssize_t)size)
		drive_fail("the other process is gone");
}

void contract_tell(struct contract *c, char what)
{
	contract_give(c, &what, 1);
}

void contract_await(struct contract *c, char what)
{
	char got;

	contract_take(c, &got, 1);
	drive_check(got == what, "the other process says '%c', '%c' was expected", got, what);
}

/* ---- main ---- */

static void on_alarm(int signal)
{
	static const char text[] = "FAILED: hangs\n";

	(void)signal;
	if (write(2, text, sizeof(text) - 1) < 0)
		_exit(3);
	_exit(2);
}

static void parse_options(struct contract *c, int argc, char **argv, unsigned *deadline)
{
	static const struct option options[] = {
		{"lib", required_argument, NULL, 'l'},
		{"api", required_argument, NULL, 'a'},
		{"device", required_argument, NULL, 'd'},
		{"deadline", required_argument, NULL, 't'},
		{"verbose", no_argument, NULL, 'v'},
		{"list", no_argument, NULL, 'L'},
		{"offset", required_argument, NULL, 'o'},
		{"patch", required_argument, NULL, 'p'},
		{NULL, 0, NULL, 0},
	};
	int option;

	while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
		switch (option) {
		case 'l':
			c->source.path = optarg;
			break;
		case 'a':
			c->source.api = atoi(optarg);
			break;
		case 'd':
			c->device = atoi(optarg);
			break;
		case 't':
			*deadline = (unsigned)atoi(optarg);
			break;
		case 'v':
			drive_log_verbose(true);
			break;
		case 'L':
			list_scenarios();
			exit(0);
		case 'o':
			c->source.table_offset = strtoull(optarg, NULL, 0);
			break;
		case 'p':
			drive_check(c->source.npatches < DRIVE_MAX_PATCHES, "too many --patch");
			c->source.patch[c->source.npatches++] = strtoull(optarg, NULL, 0);
			break;
		default:
			drive_fail("see the table of options in %s", __FILE_NAME__);
		}
	}
	drive_check(c->source.path && optind == argc - 1, "--lib PATH and one scenario are needed");
	drive_check(c->source.api >= 4 && c->source.api <= 12, "--api 4 to 12");
}

int main(int argc, char **argv)
{
	struct contract c = {.source.api = 12, .control = -1, .life = {-1, -1}};
	unsigned deadline = 60;
	const struct scenario *scenario;

	parse_options(&c, argc, argv, &deadline);
	scenario = find_scenario(argv[optind]);
	drive_check(c.source.api >= scenario->min_api, "%s starts with v%d", scenario->name, scenario->min_api);
	signal(SIGALRM, on_alarm);
	if (scenario->peer)
		start_peer(&c, scenario, deadline);
	alarm(deadline);
	scenario->run(&c);
	if (c.peer)
		contract_join_peer(&c);
	printf("{\"scenario\": \"%s\", \"api\": %d}\n", scenario->name, c.source.api);
	return 0;
}
