# SPDX-License-Identifier: MIT
"""Every collective of the plan; each result is compared element by element with the exact one.

The data is that of ``bagua-net bench``: small whole numbers, repeated after a prime number of elements, whose sums
every type represents exactly (``bagua_net._bench.workload.elements``).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from bagua_net._bench.workload.elements import TYPES, Stream, inputs, reduced
from bagua_net._bench.workload.ops import Part

from . import plan
from .member import Member

_ROOT = 0
#: A value that no rank sends, in every type.
_POISON = -1


@dataclass(frozen=True)
class Data:
    """The buffers of one case on one rank, and the required result."""

    send: torch.Tensor
    receive: torch.Tensor
    expected: torch.Tensor
    """Shorter than ``receive``, or empty: the rest may be anything."""


def _blocks(tensor: torch.Tensor, ranks: int) -> list[torch.Tensor]:
    return list(tensor.chunk(ranks))


def _wait(works: list[Any]) -> None:
    for work in works:
        work.wait()


def _send_recv(data: Data, group: Any, member: Member) -> None:
    following, preceding = (member.rank + 1) % member.ranks, (member.rank - 1) % member.ranks
    pair = [
        dist.P2POp(dist.isend, data.send, following, group),
        dist.P2POp(dist.irecv, data.receive, preceding, group),
    ]
    _wait(dist.batch_isend_irecv(pair))


def _gather(data: Data, group: Any, member: Member) -> None:
    blocks = _blocks(data.receive, member.ranks) if member.rank == _ROOT else None
    dist.gather(data.send, blocks, dst=_ROOT, group=group)


def _scatter(data: Data, group: Any, member: Member) -> None:
    blocks = _blocks(data.send, member.ranks) if member.rank == _ROOT else None
    dist.scatter(data.receive, blocks, src=_ROOT, group=group)


def redop(name: str) -> Any:
    """torch's reduction."""
    return getattr(dist.ReduceOp, {"prod": "PRODUCT"}.get(name, name.upper()))


def _call(case: plan.Case, data: Data, group: Any, member: Member) -> None:
    calls: dict[str, Callable[[], Any]] = {
        "all_reduce": lambda: dist.all_reduce(data.receive, redop(case.redop), group=group),
        "reduce": lambda: dist.reduce(data.receive, _ROOT, redop(case.redop), group=group),
        "broadcast": lambda: dist.broadcast(data.receive, _ROOT, group=group),
        "all_gather": lambda: dist.all_gather_into_tensor(data.receive, data.send, group=group),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(data.receive, data.send, redop(case.redop), group=group),
        "all_to_all": lambda: dist.all_to_all_single(data.receive, data.send, group=group),
        "gather": lambda: _gather(data, group, member),
        "scatter": lambda: _scatter(data, group, member),
        "send_recv": lambda: _send_recv(data, group, member),
    }
    calls[case.op]()


#: The collectives whose send buffers have a block for each rank, and those whose receive buffers have.
_SENDS_BLOCKS = ("reduce_scatter", "all_to_all", "scatter")
_RECEIVES_BLOCKS = ("all_gather", "all_to_all", "gather")
_IN_PLACE = ("all_reduce", "reduce", "broadcast")


def result(op: str, rank: int, ranks: int, count: int) -> list[Part]:
    """The required content of the receive buffer. reduce and gather have a result only on the root."""
    everyone = [Part(source, 0, count) for source in range(ranks)]
    parts = {
        "all_reduce": [Part(None, 0, count)],
        "reduce": [Part(None, 0, count)] if rank == _ROOT else [],
        "broadcast": [Part(_ROOT, 0, count)],
        "all_gather": everyone,
        "reduce_scatter": [Part(None, rank * count, count)],
        "all_to_all": [Part(source, rank * count, count) for source in range(ranks)],
        "gather": everyone if rank == _ROOT else [],
        "scatter": [Part(_ROOT, rank * count, count)],
        "send_recv": [Part((rank - 1) % ranks, 0, count)],
    }
    return parts[op]


class Source:
    """The data of a type and a reduction, as tensors on the rank's device."""

    def __init__(self, member: Member, dtype: str, reduction: str) -> None:
        self._member = member
        self._dtype = getattr(torch, dtype)
        self._inputs = inputs(TYPES[dtype], reduction, member.ranks)
        self._reduced = reduced(TYPES[dtype], reduction, member.ranks)

    def part(self, part: Part) -> torch.Tensor:
        """``part.count`` elements of the stream, from ``part.start`` on."""
        stream: Stream = self._reduced if part.source is None else self._inputs[part.source]
        period = torch.frombuffer(bytearray(stream.period), dtype=self._dtype).to(self._member.device)
        turn = part.start % len(period)
        tile = torch.roll(period, -turn)
        return tile.repeat(-(-part.count // len(tile)))[: part.count].contiguous()

    def of(self, case: plan.Case) -> Data:
        """The buffers of a case, filled."""
        rank, ranks, count = self._member.rank, self._member.ranks, case.count(self._member.ranks)
        send = self.part(Part(rank, 0, count * (ranks if case.op in _SENDS_BLOCKS else 1)))
        length = count * (ranks if case.op in _RECEIVES_BLOCKS else 1)
        parts = [self.part(part) for part in result(case.op, rank, ranks, count)]
        expected = torch.cat(parts) if parts else send[:0]
        if case.op in _IN_PLACE:
            return Data(send, send, expected)
        return Data(send, torch.full((length,), _POISON, dtype=self._dtype, device=self._member.device), expected)


def wrong(data: Data) -> int:
    """The number of wrong elements."""
    found = data.receive[: len(data.expected)]
    return 0 if torch.equal(found, data.expected) else int((found != data.expected).sum())


@contextmanager
def _chosen(setting: plan.Setting) -> Iterator[None]:
    """NCCL reads these when it makes a communicator, which torch does at a group's first collective."""
    os.environ.update(setting.environment)
    try:
        yield
    finally:
        for name in setting.environment:
            del os.environ[name]


def _check(member: Member, case: plan.Case, group: Any) -> str:
    """What is wrong with the result; "": nothing."""
    data = Source(member, case.dtype, case.redop).of(case)
    try:
        _call(case, data, group, member)
    except dist.DistBackendError as error:  # on all ranks, where NCCL has no such algorithm: other cases go on
        return str(error)
    member.synchronize()
    elements = wrong(data)
    return f"{elements} elements are wrong" if elements else ""


def _with_setting(member: Member, setting: plan.Setting, amount: plan.Effort) -> dict[str, Any]:
    """All cases of a setting, on a separate communicator."""
    before = member.bytes_sent()
    failures = []
    done = plan.cases(setting, amount)
    with _chosen(setting):
        group = dist.new_group(list(range(member.ranks)))
        for case in done:
            name = f"{setting.name}: {case.name}"
            print(name, flush=True)
            problem = _check(member, case, group)
            if problem:
                failures.append(f"{name}: {problem}")
    sent = member.bytes_sent() - before
    dist.destroy_process_group(group)
    return {"setting": setting.name, "cases": len(done), "wrong": failures, "bytes_sent": sent}


def run(member: Member) -> list[dict[str, Any]]:
    """Every case with every setting."""
    amount = plan.effort(member.ranks, member.job.device)
    with member.group():
        return [_with_setting(member, setting, amount) for setting in plan.settings(member.job.device)]
