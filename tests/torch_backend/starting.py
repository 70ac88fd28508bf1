# SPDX-License-Identifier: MIT
"""A rank of a job that starts under difficulties, as a program: ``starting.py WHAT STORE``, with RANK and WORLD_SIZE.

Its last line is what a user gets: "ok", or the error.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import resource
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import bagua_net.torch
from tests.torch_backend.inside import await_meeting

_TIMEOUT = timedelta(seconds=300)  # a test that waits for it fails
_AF_UNIX_ABSTRACT = 8  # bytes of the address of a socket that the kernel has named
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 38, 22, 2
_LOAD, _IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
#: System calls by their numbers on x86-64 and on aarch64.
_CALLS = {
    "accept4": (288, 242),
    "clone": (56, 220),
    "clone3": (435, 435),
    "connect": (42, 203),
    "fcntl": (72, 25),
    "memfd_create": (319, 279),
}


def refuse(call: str, error: int, argument: int | None = None, value: int = 0) -> None:
    """From now on the kernel refuses this system call to this process, or only with this value of an argument."""
    number = _CALLS[call][platform.machine() == "aarch64"]
    checks = [(0, number)] if argument is None else [(0, number), (16 + 8 * argument, value)]
    program = b""
    for left, (offset, expected) in zip(range(len(checks), 0, -1), checks, strict=True):
        program += struct.pack("HBBI", _LOAD, 0, 0, offset)
        program += struct.pack("HBBI", _IF_EQUAL, 0, 2 * left - 1, expected)
    program += struct.pack("HBBI", _RETURN, 0, 0, _ERRNO | error) + struct.pack("HBBI", _RETURN, 0, 0, _ALLOW)
    code = ctypes.create_string_buffer(program)
    filter_ = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(code))
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    for arguments in ((_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), (_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, filter_)):
        if prctl(*arguments) != 0:
            raise OSError(ctypes.get_errno(), "prctl")


def few_descriptors(more: int) -> None:
    """So many more than are open now."""
    used = len(list(Path("/proc/self/fd").iterdir()))
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + more, used + more))


def _sum() -> None:
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [float(dist.get_world_size())] * 3


def _collectives() -> None:
    """Each kind once, small and large enough for every way that it may go."""
    rank, size = dist.get_rank(), dist.get_world_size()
    for count in (3, 1_000_000):
        own = torch.full((count,), float(rank))
        total = own.clone()
        dist.all_reduce(total)
        assert total.eq(sum(range(size))).all()
        sent = own.clone()
        dist.broadcast(sent, 1)
        assert sent.eq(1).all()
        rows = [torch.empty(count) for _ in range(size)]
        dist.all_gather(rows, own)
        assert all(row.eq(number).all() for number, row in enumerate(rows))
        mixed = [torch.empty(count) for _ in range(size)]
        dist.all_to_all(mixed, [own + 100 * other for other in range(size)])
        assert all(row.eq(number + 100 * rank).all() for number, row in enumerate(mixed))
        part = torch.empty(count)
        dist.reduce_scatter(part, [own + other for other in range(size)])
        assert part.eq(sum(range(size)) + size * rank).all()
        dist.scatter(part, [own + other for other in range(size)] if rank == 0 else None, 0)
        assert part.eq(rank).all()
        dist.gather(own, rows if rank == 2 else None, 2)
        work = dist.isend(own, (rank + 1) % size)
        dist.recv(part, (rank - 1) % size)
        assert work is not None
        assert work.wait()
        assert part.eq((rank - 1) % size).all()
        dist.barrier()


def _await(path: Path) -> None:
    while not path.exists():
        time.sleep(0.01)


def die_before_use(here: Path, use: Callable[[], None]) -> None:
    """Rank 1 ends before the others use the group, and not before they have made it."""
    if dist.get_rank() == 1:
        await_meeting(dist.group.WORLD)
        (here / "dead").touch()
        os._exit(0)
    _await(here / "dead")
    use()


def die_meanwhile(here: Path, use: Callable[[], None]) -> None:
    """Rank 1 ends when the others have connected to it, and not before."""
    if dist.get_rank() == 1:
        await_meeting(dist.group.WORLD)
        for rank in (0, 2):
            _await(here / f"uses{rank}")
        time.sleep(1)
        os._exit(0)
    (here / f"uses{dist.get_rank()}").touch()
    use()


def send(_: Path) -> None:
    dist.send(torch.ones(2), 1)


def with_few_descriptors(_: Path) -> None:
    """Rank 1 runs out of them: nobody ends groups."""
    _sum()
    if dist.get_rank() == 1:
        few_descriptors(40)
    groups: list[Any] = []
    while len(groups) < 40:
        groups.append(dist.new_group())
        dist.all_reduce(torch.ones(3), group=groups[-1])


def die_later(here: Path) -> None:
    """Rank 1 ends while the others, each on a host of its own, use a group that was used before."""
    _sum()
    if dist.get_rank() == 1:
        os._exit(0)
    for _ in range(1000):
        dist.all_reduce(torch.ones(100_000))


def with_no_more_threads(_: Path) -> None:
    """On rank 1, when the second group is made."""
    _sum()
    if dist.get_rank() == 1:
        for call in ("clone", "clone3"):
            refuse(call, errno.EAGAIN)
    dist.all_reduce(torch.ones(3), group=dist.new_group())


def with_lost_address(_: Path) -> None:
    """Rank 1's interface has another address when the second group is made."""
    _sum()
    if dist.get_rank() == 1:
        for change in (("flush",), ("add", "10.79.0.3/24")):
            subprocess.run(["ip", "address", *change, "dev", "link0"], check=True)
    dist.all_reduce(torch.ones(3), group=dist.new_group())


_STEPS: dict[str, Callable[[Path], None]] = {
    "sum": lambda _: _sum(),
    "collectives": lambda _: _collectives(),
    "dead before a sum": lambda here: die_before_use(here, _sum),
    "dead before a send": lambda here: die_before_use(here, lambda: send(here)),
    "dead in a sum": lambda here: die_meanwhile(here, _sum),
    "dead later": die_later,
    "few descriptors": with_few_descriptors,
    "lost address": with_lost_address,
    "no more threads": with_no_more_threads,
}
#: What the kernel refuses to one rank.
_REFUSALS: dict[str, tuple[int, Callable[[], None]]] = {
    "connect": (1, lambda: refuse("connect", 13, 2, _AF_UNIX_ABSTRACT)),
    "memfd_create": (0, lambda: refuse("memfd_create", 38)),
    "accept": (0, lambda: refuse("accept4", 24, 1, 0)),
    "lock": (1, lambda: refuse("fcntl", 37, 1, 6)),
}


def _store(what: str, here: Path, rank: int, size: int) -> dist.Store:
    """A file, which needs no network, or where descriptors are few a connection: a file is opened at each use."""
    if what != "few descriptors":
        return dist.FileStore(str(here / "store"), size)
    if rank == 0:
        store = dist.TCPStore("127.0.0.1", 0, size, True, wait_for_workers=False)
        (here / "new").write_text(str(store.port))
        (here / "new").rename(here / "port")
        return store
    _await(here / "port")
    return dist.TCPStore("127.0.0.1", int((here / "port").read_text()), size)


def main(what: str, here: Path) -> None:
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    if what == "dead later":
        os.environ["NCCL_HOSTID"] = str(rank)
    what, _, also = what.partition(" without ")
    refused = _REFUSALS.get(also or what)
    if refused is not None and refused[0] == rank:
        refused[1]()
    store = _store(what, here, rank, size)
    dist.init_process_group("bagua_net", store=store, rank=rank, world_size=size, timeout=_TIMEOUT)
    began = time.monotonic()
    try:
        _STEPS.get(what, _STEPS["sum"])(here)
    except RuntimeError as error:
        print(f"after {time.monotonic() - began:.1f} s", file=sys.stderr)
        print(error, flush=True)
        os._exit(1)  # others may still wait
    print("ok", flush=True)
    (here / f"over{rank}").touch()
    for other in range(size):
        if what in (*_REFUSALS, "sum", "collectives"):
            _await(here / f"over{other}")
    os._exit(0)


if __name__ == "__main__":
    assert bagua_net.torch
    main(sys.argv[1], Path(sys.argv[2]))
