/* SPDX-License-Identifier: MIT
 *
 * The machine that NCCL is told of: one processor and one GPU behind PCIe. NCCL adds the network itself.
 */
#ifndef EMU_TOPOLOGY_H
#define EMU_TOPOLOGY_H

#define EMU_BUS_ID "0000:0f:00.0"
enum { EMU_CAPABILITY_MAJOR = 8, EMU_CAPABILITY_MINOR = 0 };

/* Writes the description and stores the name under which NCCL opens it. 0 or -errno. The file lives as long as the
 * process, in memory. */
int emu_topology_write(char *path, unsigned size);

#endif
