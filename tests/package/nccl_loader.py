# SPDX-License-Identifier: MIT
"""A process in which NCCL's own loader chooses a network, as in a worker of a job. It needs no GPU.

A communicator's choice of a network is three steps: NCCL_NET is read into the communicator's configuration, the
plugins are loaded, and ``ncclNetInit`` writes the table of the network into the communicator. The process makes the
same three calls on a zeroed communicator; the functions are found in the library's symbol table.

    done = subprocess.run(nccl_loader.worker("2.30.7"), capture_output=True, text=True)
    assert "chose BaguaNet 0 1" in nccl_loader.found(done.stdout)
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from bagua_net._nccl import elf
from tests.support import nccl_wheels

OVERRIDE, INIT, FINALIZE = (
    "_ZL17envConfigOverrideP8ncclComm",
    "_Z11ncclNetInitP8ncclComm",
    "_Z15ncclNetFinalizeP8ncclComm",  # 2.28 and later
)

# argv: libnccl.so.2, a library to load before NCCL looks for it or "", offsets of the functions above and of
# ncclGetVersion. It imports nothing of ours: the process contains only what NCCL has loaded.
CHOOSE = """
import ctypes, json, os, sys
from pathlib import Path

nccl = ctypes.CDLL(sys.argv[1])
preload = ctypes.CDLL(sys.argv[2]) if sys.argv[2] else None
override, init, finalize, version = json.loads(sys.argv[3])
base = ctypes.cast(nccl.ncclGetVersion, ctypes.c_void_p).value - version

def call(offset, argument):
    return ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(base + offset)(argument)

memory = os.open("/proc/self/mem", os.O_RDONLY)

def peek(address, size):
    try:
        return os.pread(memory, size, address)
    except (OSError, OverflowError):
        return b""

def table_named(comm, name):
    # The communicator's fields differ between releases: its network is the one that points to a table whose first
    # entry, as in every version, points to the name.
    for word in (comm[i:i + 8] for i in range(0, len(comm), 8)):
        table = int.from_bytes(word, "little")
        name_at = int.from_bytes(peek(table, 8), "little") if table else 0
        if name_at and peek(name_at, len(name) + 1) == name + b"\\0":
            return table
    return None

def say(*words):  # a line in one write: NCCL's threads write to the same file
    os.write(1, ("\\n" + " ".join(map(str, words)) + "\\n").encode())

nccl.ncclGetUniqueId(ctypes.create_string_buffer(128))
size = 8 << 20
comm = ctypes.create_string_buffer(size)
address = ctypes.cast(comm, ctypes.c_void_p)
call(override, address)
result = call(init, address)
say("result", result)
for name in (b"BaguaNet", b"Socket"):
    table = table_named(comm.raw[:1 << 17], name)
    if table is None:
        continue
    devices = ctypes.c_int()
    count = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(int.from_bytes(peek(table + 16, 8), "little"))
    say("chose", name.decode(), count(ctypes.byref(devices)), devices.value)
if result == 0 and finalize:
    say("finalize", call(finalize, address))
say("mapped", "libnccl-net-bagua.so" in Path("/proc/self/maps").read_text())
"""


def offsets(nccl: Path) -> str:
    """The offsets of the functions above and of ncclGetVersion, as JSON; null for one that this release lacks."""
    names = (OVERRIDE, INIT, FINALIZE, "ncclGetVersion")
    found = elf.symbols(nccl, names)
    return json.dumps([found[name].offset if name in found else None for name in names])


def worker(version: str, preload: str = "") -> list[str]:
    """The command of such a process. Skips the calling test where that NCCL is not available.

    Args:
        preload: a library to load before NCCL looks for it.
    """
    nccl = nccl_wheels.library(version)
    return [sys.executable, "-u", "-c", CHOOSE, str(nccl), preload, offsets(nccl)]


def found(printed: str) -> str:
    """The process's own lines, without NCCL's log."""
    own = ("result", "chose", "finalize", "mapped")
    return "\n".join(line for line in printed.splitlines() if line.split(" ")[0] in own)
