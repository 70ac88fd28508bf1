# SPDX-License-Identifier: MIT
"""Measures allreduce of NCCL itself on GPUs, over the plugin and over NCCL's own sockets in turn.

It needs the plugin and torch with CUDA.
"""

from __future__ import annotations

import argparse
import datetime
import os
import signal
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bagua_net import _sizes
from bagua_net._bench.ranks import rendezvous
from bagua_net._bench.ranks.launch import Launcher
from bagua_net._bench.transports.interface_choice import use_interface
from bagua_net._bench.workload.config import Config
from bagua_net._bench.workload.result import Row
from bagua_net._errors import BaguaNetError
from bagua_net._native.plugin import plugin_path
from bagua_net._settings import layers
from benchmarks import ROOT, command_line
from benchmarks.gpu import gpus
from benchmarks.report import machine, markdown, results
from benchmarks.run.scenarios import GPU, Cell

_RESULTS = ROOT / "benchmarks" / "results"
#: Device → side → its transport in ``bagua-net bench``. "cpu" tries this program without a GPU.
SIDES = {
    "cuda": {"nccl": "nccl", "ours": "nccl+bagua"},
    "cpu": {"nccl": "nccl-socket", "ours": "bagua"},
}
#: Approximate time for which each number of ranks is measured; single slow calls add to it.
_SECONDS_OF_RANKS = 20.0
_ADDRESS = "127.0.0.1"
#: Of the ranks' output, printed when one fails.
_KEPT_LINES = 200


class BenchmarkError(Exception):
    """Nothing can be measured; the text says why."""


class OutOfTime(Exception):
    """The given time is over."""


@dataclass(frozen=True)
class Plan:
    """What the command line asks for."""

    device: str
    ranks: tuple[int, ...]
    sizes: tuple[int, ...]
    rounds: int
    seconds: int
    """Limit for the whole run; 0: none."""
    timeout_s: float
    """Without any progress."""
    output: Path

    def config(self, ranks: int) -> Config:
        return Config(
            nranks=ranks,
            op="allreduce",
            sizes=self.sizes,
            transports=tuple(SIDES[self.device].values()),
            device=self.device,
            rounds=self.rounds,
            seconds=_SECONDS_OF_RANKS,
            timeout=self.timeout_s,
        )


@contextmanager
def time_limit(seconds: int) -> Iterator[None]:
    """Raises OutOfTime in the block when the time is over or on SIGTERM."""

    def stop(number: int, frame: object) -> None:
        raise OutOfTime

    before = {number: signal.signal(number, stop) for number in (signal.SIGALRM, signal.SIGTERM)}
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        for number, handler in before.items():
            signal.signal(number, handler)


def runs_of(row: Row, side: str, neighbours: float) -> list[results.Run]:
    """One per round: the bus bandwidth, GB/s, and the time of a call."""
    if row.wrong:
        error = f"{row.wrong} elements are wrong after an allreduce of {row.size} bytes"
        return [results.Run(side, "", 0, 0, None, [], neighbours, error)]
    factor = row.busbw * row.seconds
    return [
        results.Run(
            side, "", pair, 0, factor / seconds, [], neighbours, details={"us": seconds * 1e6, "iterations": row.iters}
        )
        for pair, seconds in enumerate(row.rounds)
    ]


class Benchmark:
    """One run over the numbers of ranks of a plan. The readings are stored after each size."""

    def __init__(self, plan: Plan, stored: results.Results) -> None:
        self._plan = plan
        self._stored = stored
        self._sides = {transport: side for side, transport in SIDES[plan.device].items()}
        self._neighbours = machine.Neighbours()
        self._said: deque[str] = deque(maxlen=_KEPT_LINES)
        self.failures: list[str] = []

    def run(self) -> None:
        """Measures, until the time is over."""
        try:
            with time_limit(self._plan.seconds):
                for ranks in self._plan.ranks:
                    self._measure(ranks)
        except OutOfTime:
            self._fail("stopped before the end: the time was over")

    def _measure(self, ranks: int) -> None:
        config = self._plan.config(ranks)
        token = rendezvous.new_token()
        members = ranks * (len(SIDES[config.device]) if config.device == "cuda" else 1)
        try:
            with rendezvous.Server(members, token, _ADDRESS, 0, config.timeout) as server:
                address = (_ADDRESS, server.port)
                Launcher(config, list(range(ranks)), address, token, self._take, self._said.append).run()
        except BaguaNetError as error:
            print(*self._said, sep="\n", file=sys.stderr)
            self._fail(f"{ranks} ranks: {error}")

    def _fail(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)
        self.failures.append(text)

    def _take(self, event: dict[str, Any]) -> None:
        if event["event"] != "rows":
            return
        share, self._neighbours = self._neighbours.share(), machine.Neighbours()
        for fields in event["rows"]:
            row = Row(**fields)
            side = self._sides[row.transport]
            cell = Cell(GPU.name, "loopback", 0, row.size, ranks=row.nranks)
            record = self._stored.cells.setdefault(cell.key, results.CellRecord(cell, None))
            record.runs += runs_of(row, side, share)
            self.failures += record.failures(side)
            print(f"{cell.key}, {side}: {row.busbw:.4g} GB/s, {row.seconds * 1e6:.1f} µs", file=sys.stderr, flush=True)
        self._stored.save(self._plan.output)


# ---- the command line ----


def _ranks(text: str) -> tuple[int, ...]:
    found = tuple(int(number) for number in text.split(","))
    if min(found) < 2:
        raise ValueError
    return found


def arguments(words: Sequence[str]) -> argparse.Namespace:
    parser = command_line.parser("gpu", __doc__)
    add = parser.add_argument
    add("--ranks", type=_ranks, default=(2, 4, 8), help="how many, between commas (2,4,8)")
    add("--min", type=_sizes.parse, default=8, help="first size in bytes; K, M and G are suffixes (%(default)s)")
    add("--max", type=_sizes.parse, default=1 << 30, help="last size (1G)")
    add("--factor", type=int, default=8, help="from one size to the next (%(default)s)")
    add("--rounds", type=int, default=5, help="turns of each network at each size (%(default)s)")
    add("--seconds", type=int, default=0, help="stop after this time with what was read; 0: never (%(default)s)")
    add("--timeout", type=float, default=120.0, help="seconds without progress that end a run (%(default)s)")
    add("--device", choices=tuple(SIDES), default="cuda", help="cpu: the transports alone, to try this without a GPU")
    add("--output", type=Path, help="results file (benchmarks/results/DATE-gpu.jsonl); the tables lie beside it")
    add("--report", type=Path, metavar="FILE", help="print the tables of a results file and exit")
    return command_line.parsed(parser, words, "stop after two minutes", seconds=120)


def _plan(options: argparse.Namespace) -> Plan:
    try:
        swept = tuple(_sizes.sweep(options.min, options.max, options.factor))
    except ValueError as error:
        raise BenchmarkError(str(error)) from None
    today = datetime.datetime.now(datetime.timezone.utc).date()
    output = options.output or _RESULTS / f"{today}-gpu.jsonl"
    if output.exists():
        raise BenchmarkError(f"{output} exists: --output names another")
    return Plan(options.device, options.ranks, swept, options.rounds, options.seconds, options.timeout, output)


def _settings(plan: Plan, nccl_version: str) -> dict[str, object]:
    library = plugin_path()
    return {
        "congestion_control": machine.congestion_control(),
        "nccl_version": nccl_version,
        "torch_version": machine.torch_version() if plan.device == "cuda" else "",
        "plugin_version": machine.plugin_version(library),
        "plugin_sha256": machine.digest(library),
        "plugin_settings": {
            name: os.environ[name] for name in layers.of_jobs([(layers.ENVIRONMENT, dict(os.environ))])
        },
        "nccl_settings": {name: value for name, value in os.environ.items() if name.startswith("NCCL_")},
        "sharing": gpus.sharing() if plan.device == "cuda" else "",
        "pairs": plan.rounds,
    }


def _nccl_version(device: str) -> str:
    """Raises BaguaNetError if no NCCL to compare with is installed."""
    if device == "cuda":
        from bagua_net._bench.transports import cuda

        return cuda.nccl_version()
    from bagua_net._bench.transports import nccl_net

    return nccl_net.socket_version()


def measure(plan: Plan, words: Sequence[str]) -> list[str]:
    """Measures, prints and stores; returns what went wrong.

    Raises:
        BaguaNetError: there is no GPU, no torch, no NCCL or no plugin.
    """
    version = _nccl_version(plan.device)
    use_interface(None, local=True)
    os.environ.setdefault("NCCL_DEBUG", "WARN")
    now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    computer = {**machine.describe(), **({"gpus": gpus.describe()} if plan.device == "cuda" else {})}
    stored = results.Results(now, command_line.shown("gpu", words), computer, _settings(plan, version))
    benchmark = Benchmark(plan, stored)
    benchmark.run()
    stored.settings["failures"] = benchmark.failures
    stored.save(plan.output)
    text = markdown.render(results.load(plan.output))
    plan.output.with_suffix(".md").write_text(text)
    print(text)
    return benchmark.failures


def main(words: Sequence[str]) -> int:
    """0: everything was read; 1: something failed, or the time was over; 2: nothing can be measured here."""
    options = arguments(words)
    try:
        if options.report:
            print(markdown.render(results.load(options.report)))
            return 0
        return 1 if measure(_plan(options), words) else 0
    except (BenchmarkError, results.ResultsUnusable, BaguaNetError) as error:
        print(f"gpu: {error}", file=sys.stderr)
        return 2
