# SPDX-License-Identifier: MIT
"""The measurement: all transports in each rank take turns, round after round.

The largest workload goes first without being measured, as in nccl-tests: networks that adapt keep what they learn from
it, as they would in a job.

One rank's steps for one workload: check each transport once; warm up; rounds in which every transport has its turn, in
an order that rotates with the round, so that a change in the machine's load affects all alike; check again. A turn
begins with the transport's own barrier. Its time is that of the slowest rank, by that rank's clock around a Python loop
of calls; the loop itself takes about a microsecond per call, the same for all. The process's processor time is counted
as well: a network that polls while it waits takes that time from the job.
"""

from __future__ import annotations

import mmap
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import fmean

from ..transports.base import Bound, Job, Transport
from ..workload import elements
from ..workload.config import Config, Workload
from ..workload.elements import Stream
from ..workload.result import Row
from .rendezvous import Client

_MOST_ITERS = 1000
#: The first warm-up of a transport, in seconds, and in shares of the time for all measuring. Within two seconds a
#: connection of two or four hosts finds how many streams its network rewards.
_WARM_UP_S, _WARM_UP_SHARE = 2.0, 1 / 5
_POISON = b"\xa5" * (1 << 16)


@dataclass(frozen=True)
class Spent:
    """Seconds per pass over the calls of a workload."""

    clock: float
    processor: float
    """Of all threads of this process."""


@dataclass(frozen=True)
class Streams:
    """The ranks' data and its reduction."""

    inputs: list[Stream]
    reduced: Stream

    @staticmethod
    def of(config: Config) -> Streams:
        redop = config.redop if config.operation.reduces else "sum"
        return Streams(
            elements.inputs(config.element, redop, config.nranks),
            elements.reduced(config.element, redop, config.nranks),
        )

    def source(self, rank: int | None) -> Stream:
        return self.reduced if rank is None else self.inputs[rank]


def buffer_bytes(config: Config) -> int:
    """Bytes that one rank needs for its largest workload."""
    op, size = config.operation, config.element.size
    largest = 0
    for workload in config.workloads():
        sent = sum(op.send_count(count, config.nranks) for count in workload.counts)
        received = sum(op.receive_count(count, config.nranks) for count in workload.counts)
        largest = max(largest, size * (received if op.in_place else sent + received))
    return largest


class Bench:
    """One rank of a run.

    Args:
        transports: those of the run, in the order of the table; None: in another process of this rank.
    """

    def __init__(self, config: Config, rendezvous: Client, rank: int, transports: dict[str, Transport | None]) -> None:
        self._config = config
        self._rendezvous = rendezvous
        self._rank = rank
        self._transports = transports
        self._streams = Streams.of(config)
        self._memory = memoryview(mmap.mmap(-1, max(1, buffer_bytes(config))))
        self._apart = any(transport is None for transport in transports.values())

    def run(self) -> Iterator[list[Row]]:
        """The rows of each workload in turn, one per transport. The same on every rank.

        Raises:
            BaguaNetError: a network or another rank failed.
        """
        self._warm_up()
        for workload in self._config.workloads():
            yield self._measure(workload)

    def _warm_up(self) -> None:
        """In two halves: the first calls connect and meet new memory, and take longer than those that follow."""
        bound = self._bound(self._jobs(max(self._config.workloads(), key=lambda workload: sum(workload.counts))))
        seconds = min(_WARM_UP_S, self._config.seconds * _WARM_UP_SHARE / len(self._transports))
        for _ in range(2):
            slowest = self._slowest(bound, 1)
            for name, calls in self._turns(bound):
                if iters := int(seconds / 2 / slowest[name][0]):
                    self._timed(name, calls, iters)

    def _bound(self, jobs: list[Job]) -> dict[str, list[Bound]]:
        """Those of this process's transports."""
        return {
            name: [transport.bind(job) for job in jobs]
            for name, transport in self._transports.items()
            if transport is not None
        }

    # ---- one workload ----

    def _measure(self, workload: Workload) -> list[Row]:
        jobs = self._jobs(workload)
        bound = self._bound(jobs)
        turns = len(self._config.workloads()) * len(self._transports) * (self._config.rounds + 2)
        wrong = {name: self._checked(name, jobs, calls) for name, calls in self._turns(bound)}
        chosen = {name: calls[-1].chosen() for name, calls in bound.items()}
        iters = self._iterations(bound, self._config.seconds / turns)
        spent: dict[str, list[Spent]] = {name: [] for name in bound}
        for number in range(self._config.rounds):
            for name, calls in self._turns(bound, start=number):
                spent[name].append(self._timed(name, calls, iters[name]))
        for name, calls in self._turns(bound):
            wrong[name] += self._checked(name, jobs, calls)
        return self._rows(workload, spent, wrong, iters, chosen)

    def _turns(self, bound: dict[str, list[Bound]], start: int = 0) -> Iterator[tuple[str, list[Bound]]]:
        """This process's transports, each when it is its turn among all of them."""
        names = list(self._transports)
        for at in range(len(names)):
            name = names[(start + at) % len(names)]
            if name in bound:
                yield name, bound[name]
            if self._apart:
                self._rendezvous.barrier()

    def _jobs(self, workload: Workload) -> list[Job]:
        config, op, size = self._config, self._config.operation, self._config.element.size
        jobs = []
        at = 0
        for count in workload.counts:
            receive_bytes = size * op.receive_count(count, config.nranks)
            receive = self._memory[at : at + receive_bytes]
            at += receive_bytes
            send = receive
            if not op.in_place:
                send_bytes = size * op.send_count(count, config.nranks)
                send = self._memory[at : at + send_bytes]
                at += send_bytes
            jobs.append(Job(config.op, config.dtype, config.redop, count, send, receive))
        return jobs

    # ---- one turn ----

    def _checked(self, name: str, jobs: list[Job], calls: list[Bound]) -> int:
        """Does every job once on known data; returns the number of elements that are wrong, or too far from right."""
        op, nranks = self._config.operation, self._config.nranks
        for job in jobs:
            if not op.in_place:
                _poison(job.receive)
            self._streams.inputs[self._rank].fill(job.send, 0, op.send_count(job.count, nranks))
        for bound in calls:
            bound.push()
        self._do(calls, 1)
        wrong = 0
        for job, bound in zip(jobs, calls, strict=True):
            bound.pull()
            at = 0
            for part in op.result(self._rank, nranks, job.count):
                found = job.receive[at : at + part.count * self._config.element.size]
                expected = self._streams.source(part.source)
                if bound.tolerance:
                    wrong += expected.beyond(found, part.start, part.count, bound.tolerance)
                else:
                    wrong += expected.wrong(found, part.start, part.count)
                at += len(found)
        return wrong

    def _timed(self, name: str, calls: list[Bound], iters: int) -> Spent:
        transport = self._transports[name]
        assert transport is not None
        transport.barrier()
        used, start = time.process_time(), time.perf_counter()
        self._do(calls, iters)
        clock = time.perf_counter() - start
        return Spent(clock / iters, (time.process_time() - used) / iters)

    @staticmethod
    def _do(calls: list[Bound], iters: int) -> None:
        functions = [bound.call for bound in calls]
        for _ in range(iters):
            for function in functions:
                function()
        calls[-1].finish()

    # ---- what the ranks agree on ----

    def _slowest(self, bound: dict[str, list[Bound]], iters: int) -> dict[str, list[float]]:
        """Seconds of a pass over the calls of each transport, a mean of so many, on the slowest rank."""
        return self._gather({name: [self._timed(name, calls, iters).clock] for name, calls in self._turns(bound)}, max)

    def _iterations(self, bound: dict[str, list[Bound]], seconds: float) -> dict[str, int]:
        """Calls per round for each transport, the same on every rank: by the slowest rank's warm-up."""
        slowest = self._slowest(bound, max(1, self._config.warmup))
        if self._config.iters:
            return {name: self._config.iters for name in slowest}
        return {name: max(1, min(_MOST_ITERS, int(seconds / took))) for name, (took,) in slowest.items()}

    def _gather(self, mine: dict[str, list[float]], reduce: Callable[[list[float]], float]) -> dict[str, list[float]]:
        """Reduces each transport's figures, place by place, over the ranks that have it."""
        rows = self._rendezvous.all_gather(mine)
        return {
            name: [reduce(list(column)) for column in zip(*(row[name] for row in rows if name in row), strict=True)]
            for name in self._transports
        }

    def _first_text(self, mine: dict[str, str]) -> dict[str, str]:
        """Each transport's text on the lowest rank that has one: of NCCL's ranks, only the first writes its choice."""
        rows = self._rendezvous.all_gather(mine)
        return {name: next(filter(None, (row.get(name) for row in rows)), "") for name in self._transports}

    def _rows(
        self,
        workload: Workload,
        spent: dict[str, list[Spent]],
        wrong: dict[str, int],
        iters: dict[str, int],
        chosen: dict[str, str],
    ) -> list[Row]:
        config, op = self._config, self._config.operation
        slowest = self._gather({name: [turn.clock for turn in turns] for name, turns in spent.items()}, max)
        used = self._gather({name: [turn.processor for turn in turns] for name, turns in spent.items()}, fmean)
        all_wrong = self._gather({name: [found] for name, found in wrong.items()}, sum)
        choice = self._first_text(chosen)
        count = sum(workload.counts)
        return [
            Row(
                label=workload.label,
                op=config.op,
                nranks=config.nranks,
                size=op.size(count, config.nranks, config.element.size),
                count=count,
                dtype=config.dtype,
                redop=config.redop if op.reduces else "none",
                transport=name,
                rounds=slowest[name],
                iters=iters[name],
                wrong=int(all_wrong[name][0]),
                used=used[name],
                chosen=choice[name],
            )
            for name in self._transports
        ]


def _poison(memory: memoryview) -> None:
    """Overwrites the result of an earlier call, which could pass for that of the next."""
    for at in range(0, len(memory), len(_POISON)):
        memory[at : at + len(_POISON)] = _POISON[: len(memory) - at]
