/* SPDX-License-Identifier: MIT
 *
 * Helpers of drive_contract's scenarios: connections, messages, and the state of the process. Single-threaded.
 */
#include "drive_contract.h"

#include <dlfcn.h>
#include <netinet/in.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>

void contract_load_class(struct contract *c, int traffic_class)
{
	const void *raw = drive_open(&c->source, &c->library);

	drive_ok(bnet_client_init_class(&c->client, raw, c->source.api, drive_logger, traffic_class));
}

void contract_load(struct contract *c)
{
	contract_load_class(c, NCCL_NET_TRAFFIC_CLASS_UNDEF);
}

void contract_finalize(struct contract *c)
{
	drive_ok(bnet_client_finalize(&c->client));
}

/* ---- connections ---- */

void *contract_listen(struct contract *c, void *handle)
{
	void *listen_comm = NULL;

	memset(handle, 0, NCCL_NET_HANDLE_MAXSIZE);
	drive_ok(bnet_client_listen(&c->client, c->device, handle, &listen_comm));
	drive_check(listen_comm, "listen gave no object");
	return listen_comm;
}

void *contract_connect(struct contract *c, void *handle)
{
	void *comm = NULL;

	for (;;) {
		drive_ok(bnet_client_connect(&c->client, c->device, handle, &comm));
		if (comm)
			return comm;
		sched_yield();
	}
}

ncclResult_t contract_connect_error(struct contract *c, void *handle)
{
	void *comm = NULL;
	ncclResult_t result;

	do {
		result = bnet_client_connect(&c->client, c->device, handle, &comm);
		drive_check(!comm, "connect succeeded");
		contract_nap();
	} while (result == ncclSuccess);
	return result;
}

void *contract_accept(struct contract *c, void *listen_comm)
{
	void *comm = NULL;

	for (;;) {
		drive_ok(bnet_client_accept(&c->client, listen_comm, &comm));
		if (comm)
			return comm;
		sched_yield();
	}
}

struct pair contract_pair(struct contract *c)
{
	unsigned char handle[NCCL_NET_HANDLE_MAXSIZE];
	void *listen_comm = contract_listen(c, handle);
	struct pair pair = {NULL, NULL};

	pair.send = contract_connect(c, handle);
	pair.recv = contract_accept(c, listen_comm);
	drive_ok(bnet_client_close_listen(&c->client, listen_comm));
	return pair;
}

void contract_close_pair(struct contract *c, struct pair pair)
{
	drive_ok(bnet_client_close_send(&c->client, pair.send));
	drive_ok(bnet_client_close_recv(&c->client, pair.recv));
}

int contract_open_socket(const unsigned char *handle)
{
	struct sockaddr_in address = {.sin_family = AF_INET};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	memcpy(&address.sin_port, handle + CONTRACT_HANDLE_ADDRESS + 2, 2);
	memcpy(&address.sin_addr, handle + CONTRACT_HANDLE_ADDRESS + 4, 4);
	if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof(address)) != 0)
		drive_fail("cannot connect to the listener of a handle: %m");
	return fd;
}

void *contract_connect_to_peer(struct contract *c)
{
	unsigned char handle[NCCL_NET_HANDLE_MAXSIZE];

	contract_take(c, handle, sizeof(handle));
	return contract_connect(c, handle);
}

void *contract_accept_from_peer(struct contract *c)
{
	unsigned char handle[NCCL_NET_HANDLE_MAXSIZE];
	void *listen_comm = contract_listen(c, handle), *comm;

	contract_give(c, handle, sizeof(handle));
	comm = contract_accept(c, listen_comm);
	drive_ok(bnet_client_close_listen(&c->client, listen_comm));
	return comm;
}

/* ---- memory and messages ---- */

struct region contract_map(struct contract *c, void *comm, size_t size)
{
	struct region region = {.size = size, .comm = comm};

	region.data = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (region.data == MAP_FAILED)
		drive_fail("mmap: %m");
	drive_ok(bnet_client_reg(&c->client, comm, region.data, size, NCCL_PTR_HOST, &region.mhandle));
	return region;
}

void contract_unmap(struct contract *c, struct region *region)
{
	drive_ok(bnet_client_dereg(&c->client, region->comm, region->mhandle));
	if (munmap(region->data, region->size) != 0)
		drive_fail("munmap: %m");
}

void *contract_isend(struct contract *c, const struct region *region, size_t offset, size_t size)
{
	void *request = NULL;

	drive_check(offset + size <= region->size, "the scenario sends more than it has mapped");
	drive_ok(
		bnet_client_isend(&c->client, region->comm, region->data + offset, size, 0, region->mhandle, &request));
	drive_check(request, "isend asked to be called again");
	return request;
}

void *contract_irecv(struct contract *c, const struct region *region, size_t offset, size_t size)
{
	void *request = NULL;

	drive_check(offset + size <= region->size, "the scenario receives more than it has mapped");
	drive_ok(
		bnet_client_irecv(&c->client, region->comm, region->data + offset, size, 0, region->mhandle, &request));
	drive_check(request, "irecv asked to be called again");
	return request;
}

int contract_wait(struct contract *c, void *request)
{
	int done = 0, size = -1;

	while (!done) {
		drive_ok(bnet_client_test(&c->client, request, &done, &size));
		if (!done)
			sched_yield();
	}
	return size;
}

struct sizes contract_wait_both(struct contract *c, void *sending, void *receiving)
{
	struct sizes sizes = {-1, -1};
	int sent = 0, received = 0;

	while (!sent || !received) {
		if (!sent)
			drive_ok(bnet_client_test(&c->client, sending, &sent, &sizes.sent));
		if (!received)
			drive_ok(bnet_client_test(&c->client, receiving, &received, &sizes.received));
		sched_yield();
	}
	return sizes;
}

ncclResult_t contract_wait_error(struct contract *c, void *request)
{
	int done = 0, size = -1;
	ncclResult_t result;

	do {
		result = bnet_client_test(&c->client, request, &done, &size);
		drive_check(result != ncclSuccess || !done, "a request completed that must fail");
		contract_nap();
	} while (result == ncclSuccess);
	return result;
}

struct drive_stamp contract_stamp(uint64_t message)
{
	return (struct drive_stamp){.sender = 7, .connection = 3, .message = message};
}

void contract_send_stamped(struct contract *c, void *comm, size_t size, uint64_t message)
{
	struct region region = contract_map(c, comm, size + 1);
	struct drive_stamp stamp = contract_stamp(message);

	drive_fill(region.data, size, &stamp);
	drive_check(contract_wait(c, contract_isend(c, &region, 0, size)) == (int)size,
		    "test of a send says another size");
	contract_unmap(c, &region);
}

void contract_recv_stamped(struct contract *c, void *comm, size_t size, uint64_t message)
{
	struct region region = contract_map(c, comm, size + 1);
	struct drive_stamp stamp = contract_stamp(message);
	int got = contract_wait(c, contract_irecv(c, &region, 0, size));
	ssize_t wrong;

	drive_check(got == (int)size, "test says %d bytes, %zu were sent", got, size);
	wrong = drive_mismatch(region.data, size, &stamp);
	drive_check(wrong < 0, "message %llu: wrong from byte %zd", (unsigned long long)message, wrong);
	contract_unmap(c, &region);
}

void contract_exchange(struct contract *c, struct pair pair, size_t size)
{
	struct region from = contract_map(c, pair.send, size + 1), to = contract_map(c, pair.recv, size + 1);
	struct drive_stamp stamp = contract_stamp(size);
	struct sizes sizes;
	void *sending;

	drive_fill(from.data, size, &stamp);
	sending = contract_isend(c, &from, 0, size);
	sizes = contract_wait_both(c, sending, contract_irecv(c, &to, 0, size));
	drive_check(sizes.received == (int)size && sizes.sent == (int)size, "%zu bytes: %d sent, %d received", size,
		    sizes.sent, sizes.received);
	drive_check(drive_mismatch(to.data, size, &stamp) < 0, "%zu bytes came out wrong", size);
	contract_unmap(c, &from);
	contract_unmap(c, &to);
}

/* ---- the state of the process ---- */

bnet_counters_t contract_counters(struct contract *c)
{
	void (*read_counters)(bnet_counters_t *);
	bnet_counters_t counters;

	*(void **)&read_counters = dlsym(c->library, "bnet_counters");
	drive_check(read_counters, "no bnet_counters: %s", dlerror());
	read_counters(&counters);
	return counters;
}

static int count_entries(const char *path)
{
	DIR *directory = opendir(path);
	int count = 0;

	drive_check(directory, "%s: %m", path);
	for (struct dirent *entry = readdir(directory); entry; entry = readdir(directory))
		count += entry->d_name[0] != '.';
	closedir(directory);
	return count;
}

int contract_count_threads(void)
{
	return count_entries("/proc/self/task");
}

int contract_count_descriptors(void)
{
	return count_entries("/proc/self/fd");
}

void contract_nap(void)
{
	nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}
