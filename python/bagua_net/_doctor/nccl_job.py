# SPDX-License-Identifier: MIT
"""One rank of the doctor's job on an emulated GPU: a communicator and one allreduce.

``python -m bagua_net._doctor.nccl_job RANK NRANKS WHERE LIBRARY DESCRIPTOR PARENT``, where rank 0 writes NCCL's id to
the descriptor and the others read it, and WHERE says in words on which hosts the ranks are. Each step that is done is a
JSON line on stdout, and so is the failure that ends the job.
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
from .._nccl.emulated import DataType, NcclFailed, RedOp

#: In order.
STEPS = ("load", "unique id", "init", "allreduce", "result", "network", "close")
FAILED = "failed"
#: The exit code where a rank has failed since another one, or the network, had.
FOLLOWED = 2

_REMOTE_ERROR = 6  # ncclRemoteError of nccl.h
_COUNT = 1 << 18
#: Ranks contribute so many different values, so that float32 holds the sum of some thousand ranks.
_WEIGHTS = 8


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


def _weight(rank: int) -> int:
    return rank % _WEIGHTS + 1


def _contribution(weight: int) -> bytearray:
    return bytearray(struct.pack(f"<{_COUNT}f", *(weight * (at % 251) for at in range(_COUNT))))


def _check(buffer: bytearray, nranks: int) -> None:
    wanted = _contribution(sum(map(_weight, range(nranks))))
    if buffer != wanted:
        wrong = sum(buffer[at : at + 4] != wanted[at : at + 4] for at in range(0, len(wanted), 4))
        raise WrongResult(f"{wrong} of {_COUNT} elements are wrong")


def run(rank: int, nranks: int, where: str, library: Path, descriptor: int, log: debug_log.DebugLog) -> None:
    """Does the steps. Raises BaguaNetError where one fails."""
    nccl = emulated.open(library)
    _say("load", f"NCCL {nccl.version_text}, {library}; this processor plays the GPU's part")
    unique_id = _shared_id(nccl, rank, descriptor)
    _say("unique id", "made by rank 0")
    comm = nccl.comm_init_rank(nranks, unique_id, rank)
    lines = log.new_lines()
    _say("init", "; ".join([f"{nranks} ranks on {where}", *debug_log.channels(lines)]))
    buffer = _contribution(_weight(rank))
    stream = nccl.stream()
    comm.all_reduce(buffer, buffer, _COUNT, DataType.FLOAT32, RedOp.SUM, stream)
    stream.synchronize()
    _say("allreduce", f"{len(buffer) >> 20} MiB of float32")
    _check(buffer, nranks)
    _say("result", "every element is right")
    _say("network", debug_log.network(lines) or "unknown")
    comm.destroy()
    stream.destroy()
    _say("close", "the communicator is released")


def main() -> None:
    rank, nranks, where, library, descriptor, parent = sys.argv[1:]
    die_with(int(parent))
    log = debug_log.DebugLog.start()
    assert log is not None  # the doctor unsets NCCL_DEBUG
    try:
        run(int(rank), int(nranks), where, Path(library), int(descriptor), log)
    except BaguaNetError as error:
        _say(FAILED, log.explain(error))
        followed = isinstance(error, NcclFailed) and error.code == _REMOTE_ERROR
        os._exit(FOLLOWED if followed else 1)  # NCCL's threads may wait for another rank


if __name__ == "__main__":
    main()
