# SPDX-License-Identifier: MIT
"""One invocation: starts its ranks, prints the reports of rank 0, writes the files."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import _sizes
from .._errors import BaguaNetError
from .._machine import memory, processors
from .._settings import layers, parameters
from .output import plot, record, report, summary
from .ranks.launch import Launcher, lanes
from .ranks.measure import buffer_bytes
from .ranks.placement import Placement
from .ranks.rendezvous import Server
from .transports.interface_choice import use_interface
from .workload import models
from .workload.config import Config
from .workload.result import Row

#: Bytes that NCCL itself takes in each process, beside the buffers.
_OWN_BYTES = {"emulated": 256 << 20}
#: A phrase about the place of a run.
_DEVICES = {"emulated": "without a GPU"}


class TooLarge(BaguaNetError):
    """The buffers do not fit into the memory that this machine or a container's limit leaves."""


@dataclass(frozen=True)
class Outputs:
    json: Path | None
    plot: Path | None
    command: list[str]
    """As typed, for the record."""

    def check(self) -> None:
        """Checks before the run: raises PlotUnavailable, or OSError where a file could not be written after it."""
        if self.plot is not None:
            plot.check(self.plot)
        for path in (self.json, self.plot):
            if path is not None and not os.path.isdir(path.absolute().parent):
                raise FileNotFoundError(f"{path}: no such directory")
            if path is not None and os.path.isdir(path):
                raise IsADirectoryError(f"{path} is a directory; name a file")
            if path is not None and not os.access(path if os.path.exists(path) else path.absolute().parent, os.W_OK):
                raise PermissionError(f"{path}: this user may not write there")


def _check_memory(config: Config, processes: int) -> None:
    free = memory.free()
    needed = (buffer_bytes(config) + _OWN_BYTES.get(config.device, 0)) * processes
    if free is not None and needed > free.bytes:
        raise TooLarge(
            f"{processes} processes need {needed / 2**30:.1f} GiB for their buffers and {free.of} has "
            f"{free.bytes / 2**30:.1f} GiB free; choose a smaller --max or fewer --ranks"
        )


def _load_text(config: Config) -> str:
    workloads = config.workloads()
    if not config.model:
        # The sizes of the rows: whole elements, and the same number for each rank.
        first, last = (
            config.operation.size(workload.counts[0], config.nranks, config.element.size)
            for workload in (workloads[0], workloads[-1])
        )
        return f"{config.op} from {_sizes.show(first)} to {_sizes.show(last)}"
    (workload,) = workloads
    total = sum(workload.counts)
    return (
        f"the gradients of {config.model}: {sum(models.parameters(config.model)):,} parameters, "
        f"{total * config.element.size / 2**20:.0f} MiB of {config.dtype} in {len(workload.counts)} buckets"
    )


class _Listener:
    """Receives rank 0's events, prints them, and keeps them for the end."""

    def __init__(self, config: Config, where: str, note: str, out: report.Report) -> None:
        self._config = config
        self._where = where
        self._note = note
        self._out = out
        self.usable: dict[str, str] = {}
        self.missing: dict[str, str] = {}
        self.evidence: dict[str, list[str]] = {}
        self.rows: list[Row] = []

    def event(self, event: dict[str, Any]) -> None:
        if event["event"] == "start":
            self._start(event["usable"], event["missing"])
        elif event["event"] == "connected":
            self._connected(event["evidence"])
        else:
            rows = [Row(**fields) for fields in event["rows"]]
            self.rows += rows
            self._out.rows(rows)

    def _start(self, usable: dict[str, str], missing: dict[str, str]) -> None:
        self.usable, self.missing = usable, missing
        self._out.say(f"# {_load_text(self._config)}, {self._where}")
        if self._note:
            self._out.say(f"# {self._note}")
        for name, text in usable.items():
            self._out.say(f"# {name}: {text}")

    def _connected(self, evidence: dict[str, list[str]]) -> None:
        self.evidence = {name: lines for name, lines in evidence.items() if lines}
        for name, lines in self.evidence.items():
            for line in lines:
                self._out.say(f"# {name} says: {line}")
        for line in report.headings():
            self._out.say(line)


def _note(config: Config) -> str:
    """What the figures are not; "" where they are what the columns say."""
    compressed = [name for name in config.transports if name.startswith("bagua+u")]
    if compressed:
        return (
            f"{' and '.join(compressed)}: results are checked against the codec's bound; bandwidths count the bytes of "
            "the elements, as nccl-tests does, not those of the codes"
        )
    if config.device != "emulated":
        return ""
    from .transports import emulated  # only where it is measured

    return (
        f"NCCL {emulated.version(config)}'s host code and network; "
        "this processor plays the GPU's part, so times say nothing about a GPU"
    )


#: NCCL's, in any case of letters.
_DEBUG_LEVELS = ("VERSION", "WARN", "INFO", "ABORT", "TRACE")
#: So begins what the libraries write to stderr, since it is to be seen without NCCL_DEBUG as well.
_OF_A_LIBRARY = ("NET/BaguaNet: ", "bagua_net: ")


def _pass_on(line: str) -> None:
    """Passes on a line that a rank wrote, if it is a library's, or NCCL_DEBUG asks for NCCL's as well."""
    if os.environ.get("NCCL_DEBUG", "").upper() in _DEBUG_LEVELS or line.startswith(_OF_A_LIBRARY):
        print(line, file=sys.stderr)


def _take_settings() -> list[str]:
    """Applies the settings of the files that NCCL reads to this process and its children, which may run without NCCL.
    Returns a phrase for each setting applied.

    Raises:
        ParameterInvalid: the plugin would refuse a value.
    """
    among = layers.of_a_job()
    for sentence in parameters.check(among):
        print(f"bagua-net: {sentence}", file=sys.stderr)
    return [f"with {setting.name}={setting.value} of {setting.layer}" for setting in layers.apply(among)]


class _Load:
    """What other programs take of the processors that this process may use, from here on.

    The load average would not do: it counts an earlier run of this command for minutes.
    """

    def __init__(self, placement: Placement) -> None:
        self.ranks = placement.on_host[1]
        self._own_share = len(placement.ranks) / self.ranks
        self._processors = os.sched_getaffinity(0)
        self.cores = len(self._processors)
        self.allowed = processors.allowed()
        self._start = self._now()

    def _now(self) -> tuple[float, float, float]:
        return time.monotonic(), processors.worked(self._processors), sum(os.times()[:4])

    def others(self) -> float:
        """The mean number of processors. Ranks of this host that another process started count as much as the own."""
        seconds, worked, own = (end - start for end, start in zip(self._now(), self._start, strict=True))
        return (worked - own / self._own_share) / seconds


def _launcher(
    config: Config, placement: Placement, address: tuple[str, int], on_event: Callable[[dict[str, Any]], None]
) -> Launcher:
    return Launcher(config, placement.ranks, address, placement.token, on_event, _pass_on, placement.on_host)


def run(config: Config, placement: Placement, ifname: str | None, outputs: Outputs) -> bool:
    """Measures, prints and writes. False: a result was wrong.

    Raises:
        BaguaNetError: a rank died, a requested network is missing, the ranks did not meet, or a parameter has a bad
            value.
        OSError: a file cannot be written.
    """
    if 0 in placement.ranks:  # the other ranks write nothing
        outputs.check()
    if ifname:
        os.environ["NCCL_SOCKET_IFNAME"] = ifname  # the option wins over a file
    taken = _take_settings()
    _check_memory(config, len(lanes(config)) * placement.on_host[1])
    interface = use_interface(ifname, placement.local)
    device = _DEVICES.get(config.device, "")
    where = ", ".join(filter(None, [placement.text, interface, device, *taken]))
    if 0 not in placement.ranks:
        _follow(config, placement)
        return True
    load = _Load(placement)
    members = len(lanes(config)) * config.nranks
    listen_on = placement.host if placement.port == 0 else ""
    with Server(members, placement.token, listen_on, placement.port, config.timeout, turn=config.nranks) as server:
        address = (placement.host, server.port)
        with report.Report(len(config.workloads())) as out:
            others = config.nranks - len(placement.ranks)
            if others:
                out.say(f"# waiting for {others} other rank{'s' if others > 1 else ''} at port {server.port}")
            listener = _Listener(config, where, _note(config), out)
            _launcher(config, placement, address, listener.event).run()
    return _finish(config, where, listener, outputs, load)


def _follow(config: Config, placement: Placement) -> None:
    """A rank of a run whose table is rank 0's. Its two lines go to stderr: stdout is for tables."""
    (rank,) = placement.ranks
    address = (placement.host, placement.port)
    print(f"# rank {rank}: looking for rank 0 at {placement.host}:{placement.port}", file=sys.stderr)
    _launcher(config, placement, address, lambda event: None).run()
    print(f"# rank {rank}: done; rank 0 has the table", file=sys.stderr)


def _finish(config: Config, where: str, listener: _Listener, outputs: Outputs, load: _Load) -> bool:
    here = load.ranks, load.cores, load.others()
    crowded = summary.busy(*here)
    measured, *compared = summary.sentences(listener.rows, where, listener.missing, crowded=crowded)
    text = [measured, *summary.contention(*here, load.allowed), *compared]
    print("#")
    for sentence in text:
        print(f"# {sentence}")
    if outputs.json is not None:
        record.write(
            outputs.json,
            command=outputs.command,
            config=config,
            where=where,
            usable=listener.usable,
            missing=listener.missing,
            evidence=listener.evidence,
            rows=listener.rows,
            summary=text,
        )
    if outputs.plot is not None:
        plot.write(outputs.plot, listener.rows, f"{config.op}, {config.dtype}, {where}")
    return all(row.wrong == 0 for row in listener.rows)
