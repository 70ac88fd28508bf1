/* SPDX-License-Identifier: MIT
 *
 * A group of ranks: its life, its errors, and what every operation does first and last. One thread at a time per group;
 * any thread may call bnet_coll_abort.
 */
#include "coll/coll.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coll/log.h"
#include "coll/reduce.h"
#include "coll/seen.h"
#include "coll/size.h"
#include "common/clock.h"
#include "shared/wait.h"

#define DEFAULT_TIMEOUT_S 300.0
#define PAGE 4096

static _Thread_local char create_error[512];

/* ---- errors ---- */

int bnet_coll_fail(struct bnet_coll *coll, int rc, const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	vsnprintf(coll->error, sizeof(coll->error), fmt, args);
	va_end(args);
	return rc;
}

/* What a failed call says about a peer, which was there only if data has moved. */
static const char *trouble(const char *call)
{
	if (strcmp(call, "connect") == 0)
		return "cannot reach";
	if (strcmp(call, "accept") == 0)
		return "has no connection from";
	return strcmp(call, "listen") == 0 ? "cannot listen for" : "lost";
}

static const char *result_name(ncclResult_t result)
{
	static const char *const names[] = {
		"ncclSuccess",         "ncclUnhandledCudaError", "ncclSystemError", "ncclInternalError",
		"ncclInvalidArgument", "ncclInvalidUsage",       "ncclRemoteError", "ncclInProgress",
	};

	return (unsigned)result < sizeof(names) / sizeof(names[0]) ? names[result] : "unknown result";
}

int bnet_coll_net_fail(struct bnet_coll *coll, ncclResult_t result, int peer, const char *call)
{
	char warning[384];

	bnet_coll_last_warning(coll->warnings, warning, sizeof(warning));
	return bnet_coll_fail(coll, result == ncclRemoteError ? -EREMOTEIO : -EIO,
			      "%s: rank %d %s rank %d: %s of %s returned %s (%d)%s%s", coll->operation, coll->rank,
			      trouble(call), peer, call, bnet_client_name(&coll->client), result_name(result),
			      (int)result, warning[0] != '\0' ? ": " : "", warning);
}

const char *bnet_coll_error(const bnet_coll_t *coll)
{
	return coll != NULL ? coll->error : create_error;
}

/* ---- create ---- */

static int create_failed(int rc, const char *what, const char *reason)
{
	snprintf(create_error, sizeof(create_error), "%s%s%s", what, reason[0] != '\0' ? ": " : "", reason);
	return rc;
}

static int open_network(struct bnet_coll *coll, const void *table, int version)
{
	ncclResult_t result;
	char reason[384];
	int ndev = 0;

	result = bnet_client_init(&coll->client, table, version, bnet_coll_logger);
	if (result == ncclSuccess) {
		result = bnet_client_devices(&coll->client, &ndev);
		if (result == ncclSuccess && coll->dev >= 0 && coll->dev < ndev)
			return 0;
		bnet_client_finalize(&coll->client);
	}
	if (result == ncclSuccess) {
		snprintf(reason, sizeof(reason), "%s has %d", bnet_client_name(&coll->client), ndev);
		return create_failed(-ENODEV, "create: no such device", reason);
	}
	bnet_coll_last_warning(coll->warnings, reason, sizeof(reason));
	return create_failed(-EIO, "create: the network could not be initialized", reason);
}

int bnet_coll_create(bnet_coll_t **out, const void *table, int version, int dev, int rank, int nranks)
{
	struct bnet_coll *coll;
	int rc;

	*out = NULL;
	if (table == NULL || version < 8 || version > 12)
		return create_failed(-EINVAL, "create", "the table must be of version 8 to 12");
	if (nranks < 1 || rank < 0 || rank >= nranks)
		return create_failed(-EINVAL, "create", "rank must be 0 to nranks-1");
	coll = calloc(1, sizeof(*coll));
	if (coll == NULL)
		return create_failed(-ENOMEM, "create", "out of memory");
	coll->dev = dev;
	coll->rank = rank;
	coll->nranks = nranks;
	coll->chunk = BNET_COLL_CHUNK;
	bnet_coll_host_init(&coll->host);
	coll->operation = "create";
	coll->warnings = bnet_coll_warnings();
	bnet_coll_set_timeout(coll, DEFAULT_TIMEOUT_S);
	coll->peers = calloc((size_t)nranks, sizeof(*coll->peers));
	coll->regions[BNET_COLL_REGION_CALLS] =
		(struct bnet_coll_region){(char *)coll->peers, (size_t)nranks * sizeof(*coll->peers)};
	rc = coll->peers != NULL ? open_network(coll, table, version)
				 : create_failed(-ENOMEM, "create", "out of memory");
	if (rc != 0) {
		free(coll->peers);
		free(coll);
		return rc;
	}
	*out = coll;
	return 0;
}

void bnet_coll_look(bnet_coll_t *coll, const void *look)
{
	if (coll == NULL)
		return;
	coll->look = look;
	if (coll->look != NULL)
		coll->look->show_operations(bnet_coll_seen_read);
}

void bnet_coll_follow_route(bnet_coll_t *coll)
{
	if (coll != NULL && coll->look != NULL)
		coll->dev = coll->look->device_on_route();
}

size_t bnet_coll_handle_size(const bnet_coll_t *coll)
{
	return coll != NULL ? (size_t)coll->nranks * NCCL_NET_HANDLE_MAXSIZE : 0;
}

void bnet_coll_share(bnet_coll_t *coll)
{
	if (coll != NULL)
		coll->host.wanted = true;
}

void bnet_coll_check_calls(bnet_coll_t *coll)
{
	if (coll != NULL)
		coll->checks = true;
}

/* It takes the place of the handle for a connection with oneself. */
static void write_info(struct bnet_coll *coll, char *row)
{
	struct bnet_peer_info info;

	_Static_assert(sizeof(info) <= NCCL_NET_HANDLE_MAXSIZE, "a peer info takes a handle's place");
	bnet_coll_host_open(&coll->host, &info);
	memcpy(row + (size_t)coll->rank * NCCL_NET_HANDLE_MAXSIZE, &info, sizeof(info));
}

int bnet_coll_listen(bnet_coll_t *coll, void *row)
{
	if (coll == NULL || row == NULL)
		return -EINVAL;
	if (coll->failed != 0)
		return coll->failed;
	coll->operation = "listen";
	coll->warnings = bnet_coll_warnings();
	memset(row, 0, bnet_coll_handle_size(coll));
	if (coll->host.wanted)
		write_info(coll, row);
	for (int rank = 0; rank < coll->nranks; rank++) {
		char *handle = (char *)row + (size_t)rank * NCCL_NET_HANDLE_MAXSIZE;
		struct bnet_coll_peer *peer = &coll->peers[rank];
		ncclResult_t result;

		if (rank == coll->rank)
			continue;
		if (peer->listen != NULL || peer->recv.comm != NULL)
			return bnet_coll_fail(coll, -EINVAL, "listen: called before");
		result = bnet_client_listen(&coll->client, coll->dev, handle, &peer->listen);
		if (result != ncclSuccess) {
			peer->listen = NULL;
			return bnet_coll_net_fail(coll, result, rank, "listen");
		}
	}
	return 0;
}

/* ---- memory ---- */

ncclResult_t bnet_coll_mhandle(struct bnet_coll *coll, struct bnet_coll_link *link, const char *data, size_t bytes,
			       void **mhandle)
{
	*mhandle = NULL;
	for (int i = 0; i < BNET_COLL_REGIONS; i++) {
		const struct bnet_coll_region *region = &coll->regions[i];
		ncclResult_t result = ncclSuccess;

		if (region->base == NULL || data < region->base || data + bytes > region->base + region->bytes)
			continue;
		if (!link->registered[i])
			result = bnet_client_reg(&coll->client, link->comm, region->base, region->bytes, NCCL_PTR_HOST,
						 &link->mhandles[i]);
		if (result != ncclSuccess)
			return result;
		link->registered[i] = true;
		*mhandle = link->mhandles[i];
		return ncclSuccess;
	}
	return ncclInternalError;
}

/* ---- close ---- */

static void deregister(struct bnet_coll *coll, int first)
{
	for (int rank = 0; rank < coll->nranks; rank++) {
		struct bnet_coll_link *links[] = {&coll->peers[rank].send, &coll->peers[rank].recv};

		for (int i = 0; i < 2; i++) {
			for (int region = first; region < BNET_COLL_REGIONS; region++) {
				if (links[i]->registered[region])
					bnet_client_dereg(&coll->client, links[i]->comm, links[i]->mhandles[region]);
				links[i]->registered[region] = false;
			}
		}
	}
}

void bnet_coll_close_send(struct bnet_coll *coll, int rank)
{
	struct bnet_coll_link *link = &coll->peers[rank].send;

	if (link->comm != NULL)
		bnet_client_close_send(&coll->client, link->comm);
	*link = (struct bnet_coll_link){0};
}

void bnet_coll_close_peer(struct bnet_coll *coll, int rank)
{
	struct bnet_coll_peer *peer = &coll->peers[rank];

	bnet_coll_close_send(coll, rank);
	if (peer->recv.comm != NULL)
		bnet_client_close_recv(&coll->client, peer->recv.comm);
	if (peer->listen != NULL)
		bnet_client_close_listen(&coll->client, peer->listen);
	*peer = (struct bnet_coll_peer){0};
}

static void close_connections(struct bnet_coll *coll)
{
	deregister(coll, BNET_COLL_REGION_CALLS);
	for (int rank = 0; rank < coll->nranks; rank++)
		bnet_coll_close_peer(coll, rank);
}

void bnet_coll_destroy(bnet_coll_t *coll)
{
	if (coll == NULL)
		return;
	bnet_coll_host_close(&coll->host, "it has ended the group");
	close_connections(coll);
	bnet_client_finalize(&coll->client);
	free(coll->regions[BNET_COLL_REGION_SCRATCH].base);
	free(coll->peers);
	free(coll);
}

/* ---- around an operation ---- */

void bnet_coll_set_timeout(bnet_coll_t *coll, double seconds)
{
	if (coll != NULL)
		coll->timeout_ns = seconds > 0 && seconds < 9e9 ? (int64_t)(seconds * 1e9) : 0;
}

void bnet_coll_abort(bnet_coll_t *coll)
{
	if (coll != NULL)
		atomic_store_explicit(&coll->aborted, true, memory_order_relaxed);
}

/* Members of the host that wait for this rank see whether it does the same as they do. */
static void tell_host(const struct bnet_coll *coll)
{
	struct bnet_shared_note note;

	_Static_assert(sizeof(note) == sizeof(coll->call), "a note is a call");
	memcpy(&note, &coll->call, sizeof(note));
	bnet_shared_begin(&coll->host.segment, &note);
}

/* Not what connecting does, which has number 0. */
static bool is_of_caller(const struct bnet_coll_call *call)
{
	return call->kind != BNET_COLL_CONNECT && (call->number > 0 || !bnet_coll_is_collective(call->kind));
}

int bnet_coll_begin(struct bnet_coll *coll, struct bnet_coll_call call, struct bnet_coll_region send,
		    struct bnet_coll_region recv)
{
	const char *operation = bnet_coll_kind_name(call.kind);

	if (coll->failed != 0)
		return coll->failed;
	if (!coll->connected)
		return bnet_coll_fail(coll, -ENOTCONN, "%s: call bnet_coll_connect first", operation);
	coll->operation = operation;
	call.number = coll->call.number + (bnet_coll_is_collective(call.kind) ? 1 : 0);
	coll->call = call;
	if (is_of_caller(&call)) {
		coll->began_ns = coll->asked_ns = (int64_t)bnet_now_ns();
		coll->waited_ns = 0;
		coll->seen = bnet_coll_seen_begin(call.kind);
	}
	if (coll->host.shared && bnet_coll_is_collective(call.kind))
		tell_host(coll);
	coll->warnings = bnet_coll_warnings();
	coll->regions[BNET_COLL_REGION_SEND] = send;
	coll->regions[BNET_COLL_REGION_RECV] = recv;
	if (atomic_load_explicit(&coll->aborted, memory_order_relaxed))
		return bnet_coll_end(coll, bnet_coll_fail(coll, -ECANCELED, "%s: aborted", operation));
	return 0;
}

/* Its larger buffer; where codes are sent, what the call says of it. */
static uint64_t bytes_of(const struct bnet_coll *coll)
{
	const size_t send = coll->regions[BNET_COLL_REGION_SEND].bytes,
		     recv = coll->regions[BNET_COLL_REGION_RECV].bytes;
	const size_t larger = send > recv ? send : recv;

	return larger > coll->call.bytes ? larger : coll->call.bytes;
}

/* Those who carry tagged messages end what they have not begun. */
static void see_end(struct bnet_coll *coll, bool failed)
{
	if (coll->began_ns != 0)
		bnet_coll_seen_end(coll->seen, coll->call.kind, failed, bytes_of(coll),
				   (int64_t)bnet_now_ns() - coll->began_ns, coll->waited_ns);
	coll->began_ns = 0;
}

int bnet_coll_end(struct bnet_coll *coll, int rc)
{
	see_end(coll, rc != 0);
	if (rc == 0) {
		deregister(coll, BNET_COLL_REGION_SEND);
		return 0;
	}
	bnet_coll_host_close(&coll->host, coll->error);
	close_connections(coll);
	coll->failed = rc;
	return rc;
}

char *bnet_coll_scratch(struct bnet_coll *coll, size_t bytes)
{
	struct bnet_coll_region *scratch = &coll->regions[BNET_COLL_REGION_SCRATCH];
	void *base;

	if (scratch->bytes >= bytes)
		return scratch->base;
	deregister(coll, BNET_COLL_REGION_SCRATCH);
	free(scratch->base);
	*scratch = (struct bnet_coll_region){0};
	bytes = bnet_coll_round_up(bytes, PAGE);
	if (posix_memalign(&base, PAGE, bytes) != 0) {
		bnet_coll_fail(coll, -ENOMEM, "%s: out of memory for %zu bytes of scratch", coll->operation, bytes);
		return NULL;
	}
	*scratch = (struct bnet_coll_region){base, bytes};
	return base;
}

/* ---- arguments ---- */

int bnet_coll_check_count(struct bnet_coll *coll, size_t count, int dtype)
{
	const size_t size = bnet_coll_dtype_size(dtype);

	if (coll == NULL)
		return -EINVAL;
	if (coll->failed != 0)
		return coll->failed;
	if (size == 0)
		return bnet_coll_fail(coll, -EINVAL, "unknown element type %d", dtype);
	if (count > (size_t)PTRDIFF_MAX / size / (size_t)coll->nranks)
		return bnet_coll_fail(coll, -EINVAL, "%zu elements for each of %d ranks are too many", count,
				      coll->nranks);
	return 0;
}

int bnet_coll_check_op(struct bnet_coll *coll, int dtype, int op)
{
	if (op < BNET_SUM || op > BNET_BXOR)
		return bnet_coll_fail(coll, -EINVAL, "unknown reduction %d", op);
	if (op >= BNET_BAND && !bnet_coll_is_integer(dtype))
		return bnet_coll_fail(coll, -EINVAL, "bitwise reductions need integers");
	return 0;
}

int bnet_coll_check_root(struct bnet_coll *coll, const char *operation, int root)
{
	if (root >= 0 && root < coll->nranks)
		return 0;
	return bnet_coll_fail(coll, -EINVAL, "%s: the root cannot be rank %d of %d", operation, root, coll->nranks);
}

int bnet_coll_check_peer(struct bnet_coll *coll, int peer)
{
	if (peer >= 0 && peer < coll->nranks && peer != coll->rank)
		return 0;
	return bnet_coll_fail(coll, -EINVAL, "rank %d cannot exchange messages with rank %d of %d", coll->rank, peer,
			      coll->nranks);
}
