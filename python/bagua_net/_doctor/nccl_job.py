# SPDX-License-Identifier: MIT
"""One rank of the doctor's job on an emulated GPU: a communicator of two and one allreduce.

``python -m bagua_net._doctor.nccl_job RANK LIBRARY DESCRIPTOR PARENT``, where rank 0 writes NCCL's id to the descriptor
and rank 1 reads it. Each step that is done is a JSON line on stdout, and so is the failure that ends the job.
"""

from __future__ import annotations

import json
import os
import struct
import sys
from pathlib import Path

from .._errors import BaguaNetError
from .._machine.parent import die_with
from .._nccl import debug_log, emulated
from .._nccl.emulated import DataType, RedOp

RANKS = 2
#: In order.
STEPS = ("load", "unique id", "init", "allreduce", "result", "network", "close")
FAILED = "failed"

_COUNT = 1 << 18


class WrongResult(BaguaNetError):
    """The allreduce did not give the sum."""


def _say(step: str, fact: str) -> None:
    print(json.dumps({"step": step, "fact": fact}), flush=True)


def _shared_id(nccl: emulated.Nccl, rank: int, descriptor: int) -> bytes:
    with os.fdopen(descriptor, "wb" if rank == 0 else "rb") as pipe:
        if rank == 0:
            made = nccl.get_unique_id()
            pipe.write(made)
            return made
        given: bytes = pipe.read()
    if not given:
        raise BaguaNetError("rank 0 gave no id")
    return given


def _check(buffer: bytearray) -> None:
    wanted = struct.pack(f"<{_COUNT}f", *(sum(range(1, RANKS + 1)) * (at % 251) for at in range(_COUNT)))
    if buffer != wanted:
        wrong = sum(buffer[at : at + 4] != wanted[at : at + 4] for at in range(0, len(wanted), 4))
        raise WrongResult(f"{wrong} of {_COUNT} elements are wrong")


def run(rank: int, library: Path, descriptor: int, log: debug_log.DebugLog) -> None:
    """Does the steps. Raises BaguaNetError where one fails."""
    nccl = emulated.open(library)
    _say("load", f"NCCL {nccl.version_text}, {library}; this processor plays the GPU's part")
    unique_id = _shared_id(nccl, rank, descriptor)
    _say("unique id", "made by rank 0")
    comm = nccl.comm_init_rank(RANKS, unique_id, rank)
    lines = log.new_lines()
    _say("init", "; ".join([f"{RANKS} ranks on this host", *debug_log.channels(lines)]))
    buffer = bytearray(struct.pack(f"<{_COUNT}f", *((rank + 1) * (at % 251) for at in range(_COUNT))))
    stream = nccl.stream()
    comm.all_reduce(buffer, buffer, _COUNT, DataType.FLOAT32, RedOp.SUM, stream)
    stream.synchronize()
    _say("allreduce", f"{len(buffer) >> 20} MiB of float32")
    _check(buffer)
    _say("result", "every element is right")
    _say("network", debug_log.network(lines) or "unknown")
    comm.destroy()
    stream.destroy()
    _say("close", "the communicator is released")


def main() -> None:
    rank, library, descriptor, parent = sys.argv[1:]
    die_with(int(parent))
    log = debug_log.DebugLog.start()
    assert log is not None  # the doctor unsets NCCL_DEBUG
    try:
        run(int(rank), Path(library), int(descriptor), log)
    except BaguaNetError as error:
        _say(FAILED, log.explain(error))
        os._exit(1)  # NCCL's threads may wait for the other rank


if __name__ == "__main__":
    main()
