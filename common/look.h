/* SPDX-License-Identifier: MIT
 *
 * What our network tells about devices and connections beyond the ncclNet functions, for those who wait for peers. Any
 * thread.
 */
#ifndef BNET_LOOK_H
#define BNET_LOOK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What the process has done of one kind of operation. Durations in µs. */
struct bnet_operation {
	const char *name;
	uint64_t calls, failed;       /* that are over */
	uint64_t bytes;               /* of the calls: the larger one of an operation's two buffers */
	uint64_t time_us, waiting_us; /* … and how long nothing moved in that time */
	uint64_t running;
	uint64_t began_us; /* the one of them that began first: the wall clock; 0: none runs */
};

/* Fills in the kind of that number, from 0. False: there are no more. Any thread. */
typedef bool bnet_operation_reader(int number, struct bnet_operation *out);

struct bnet_look {
	/* The number of the first device through which this machine reaches the job's rendezvous (device/route.h); 0:
	 * none does, or the rendezvous is unknown. Once a table has been initialized. */
	int (*device_on_route)(void);
	/* comm: of connect or accept. 0, or -errno: it has failed, or its peer has closed it; nothing need be
	 * posted. */
	int (*lost)(void *comm);
	/* handle: of a connect that has returned no comm yet. Milliseconds for which each try has been refused; 0: the
	 * last one was not. text: from where to where, and what the last try met; NULL: not wanted. */
	uint64_t (*refused_ms)(const void *handle, char *text, size_t size);
	/* From now on the process's file shows these (stats/layout.h). */
	void (*show_operations)(bnet_operation_reader *read);
};

#endif
