/* SPDX-License-Identifier: MIT
 *
 * What our network tells about devices and connections beyond the ncclNet functions, for those who wait for peers. Any thread.
 */
#ifndef BNET_LOOK_H
#define BNET_LOOK_H

#include <stddef.h>
#include <stdint.h>

struct bnet_look {
	/* The number of the first device through which this machine reaches the job's rendezvous (device/route.h); 0: none
	 * does, or the rendezvous is unknown. Once a table has been initialized. */
	int (*device_on_route)(void);
	/* comm: of connect or accept. 0, or -errno: it has failed, or its peer has closed it; nothing need be posted. */
	int (*lost)(void *comm);
	/* handle: of a connect that has returned no comm yet. Milliseconds for which each try has been refused; 0: the last
	 * one was not. text: from where to where, and what the last try met; NULL: not wanted. */
	uint64_t (*refused_ms)(const void *handle, char *text, size_t size);
};

#endif
