# SPDX-License-Identifier: MIT
"""The processes of a run on this host: started together, watched, and never left behind. If this process dies, the
kernel ends them (``_machine.parent.die_with``).
"""

from __future__ import annotations

import json
import os
import re
import selectors
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from ..._errors import BaguaNetError
from ..._nccl import shared_files
from ..transports.registry import kinds
from ..workload.config import Config
from . import process as rank_process
from .process import Assignment

#: Seconds to wait after the first death for others, one of which may be the cause.
_GRACE = 1.0
_KEPT_LINES = 20


class RankDied(BaguaNetError):
    """A rank ended before its work was done."""


@dataclass(frozen=True)
class Lane:
    """Networks that are measured in the same process of each rank."""

    names: tuple[str, ...]
    environment: dict[str, str]


def lanes(config: Config) -> list[Lane]:
    """One for all networks that can share a process, and one for each that needs its own."""
    shared: list[str] = []
    apart: list[Lane] = []
    for name, kind in kinds(config.device).items():
        if name not in config.transports if config.transports else kind.on_request:
            continue
        if kind.environment is None:
            shared.append(name)
        else:
            apart.append(Lane((name,), kind.environment(config)))
    return [Lane(tuple(shared), {}), *apart] if shared else apart


#: A line that tells of a failure. The last one before a signal may be about anything.
_ERROR = re.compile(r"[Ee]rror|\bWARN\b|[Ff]ailed|\b[Cc]annot\b|\bno space\b", re.ASCII)


@dataclass
class _Child:
    rank: int
    networks: str
    """Those of this process, where the rank has several processes."""
    process: subprocess.Popen[bytes]
    output: IO[bytes]
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=_KEPT_LINES))
    partial: bytes = b""

    def take(self, data: bytes) -> list[str]:
        """The complete lines in the output so far."""
        *whole, self.partial = (self.partial + data).split(b"\n")
        lines = [line.decode(errors="replace").rstrip() for line in whole]
        self.lines.extend(line for line in lines if line)
        return lines

    def reason(self) -> str:
        """Why it ended, in one line."""
        code = self.process.returncode
        said = [line for line in (*self.lines, self.partial.decode(errors="replace").strip()) if line]
        if code >= 0:
            return ": ".join([f"rank {self.rank} ended with exit code {code}", *said[-1:]])
        try:
            how = f"rank {self.rank}{self.networks} was killed by {signal.Signals(-code).name}"
        except ValueError:
            how = f"rank {self.rank}{self.networks} was killed by signal {-code}"
        if code == -signal.SIGBUS:
            return f"{how}: /dev/shm may be full; in Docker, --shm-size=1g"
        if code == -signal.SIGKILL:
            how += ", as the kernel does where memory or a container's limit runs short"
        return ": ".join([how, *[line for line in said if _ERROR.search(line)][-1:]])


def _blame(child: _Child) -> int:
    """Lower: more likely the cause of the other deaths."""
    code = child.process.returncode
    if code < 0:
        return 0
    return {rank_process.EXIT_NETWORK: 2, rank_process.EXIT_OTHER_RANK: 3}.get(code, 1)


def _of_device(device: str, rank: int) -> dict[str, str]:
    """What NCCL must find in a rank's environment. Ranks of one host have to count as hosts: see cuda.py."""
    host = f"bagua-net-bench-{rank}"
    if device == "emulated":
        return {"NCCL_HOSTID": host, "NCCL_COMM_BLOCKING": "1"}
    return {"NCCL_HOSTID": os.environ.get("NCCL_HOSTID", host)} if device == "cuda" else {}


class Launcher:
    """Starts this host's processes of a run, and passes on the reports of member 0 if that is one of them.

    Args:
        ranks: the ranks that live here.
        on_event: called with each event of ``process.run``.
        on_output: called with each line that a rank writes.
        on_host: the first one's number among the ranks of this host, and how many those are. By default they are
            the only ones.
    """

    def __init__(
        self,
        config: Config,
        ranks: list[int],
        address: tuple[str, int],
        token: str,
        on_event: Callable[[dict[str, Any]], None],
        on_output: Callable[[str], None],
        on_host: tuple[int, int] | None = None,
    ) -> None:
        self._config = config
        self._ranks = ranks
        self._first, self._of = on_host or (0, len(ranks))
        self._address = address
        self._token = token
        self._on_event = on_event
        self._on_output = on_output
        self._children: list[_Child] = []
        self._dead: list[_Child] = []
        self._selector = selectors.DefaultSelector()
        self._events = b""

    def run(self) -> None:
        """Returns when every process has succeeded.

        Raises:
            RankDied: one failed; the message names it and its reason. No process is left.
        """
        try:
            self._start_all()
            self._watch()
        finally:
            self._end_all()

    def _start_all(self) -> None:
        read, write = os.pipe()
        os.set_blocking(read, False)
        self._selector.register(read, selectors.EVENT_READ)
        try:
            for number, lane in enumerate(lanes(self._config)):
                for rank in self._ranks:
                    self._start(rank, number, lane, write)
        finally:
            os.close(write)

    def _start(self, rank: int, number: int, lane: Lane, events: int) -> None:
        task = Assignment(
            config=self._config.to_json(),
            rank=rank,
            names=lane.names,
            member=number * self._config.nranks + rank,
            members=len(lanes(self._config)) * self._config.nranks,
            host=self._address[0],
            port=self._address[1],
            events=events,
            parent=os.getpid(),
            share=(self._first + self._ranks.index(rank), self._of),
        )
        package_root = str(Path(__file__).resolve().parents[3])
        environment = {
            **os.environ,
            **{"RANK": str(rank), "WORLD_SIZE": str(self._config.nranks)},  # by which `bagua-net top` tells them apart
            **lane.environment,
            **_of_device(self._config.device, rank),
            rank_process.TOKEN_VARIABLE: self._token,
            "PYTHONPATH": os.pathsep.join(filter(None, [package_root, os.environ.get("PYTHONPATH")])),
            "PYTHONSAFEPATH": "1",  # nothing of the current directory, which may be anybody's (Python 3.11 and later)
        }
        process = subprocess.Popen(
            [sys.executable, "-m", "bagua_net._bench.ranks.process", task.to_json()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            pass_fds=(events,),
            start_new_session=True,  # a Ctrl-C reaches only this process, which then ends them
        )
        assert process.stdout is not None
        networks = f" of {', '.join(lane.names)}" if len(lanes(self._config)) > 1 else ""
        child = _Child(rank, networks, process, process.stdout)
        self._children.append(child)
        self._selector.register(child.output, selectors.EVENT_READ, child)

    def _watch(self) -> None:
        """Until every output has closed: then its process has ended."""
        deadline: float | None = None
        while any(child not in self._dead for child in self._children):
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                break
            for key, _ in self._selector.select(left):
                if key.data is None:
                    self._read_events(key.fd)
                else:
                    self._read_output(key.data)
            if deadline is None and any(child.process.returncode for child in self._dead):
                deadline = time.monotonic() + _GRACE
        failed = [child for child in self._dead if child.process.returncode]
        if failed:
            raise RankDied(min(failed, key=_blame).reason())

    def _read_output(self, child: _Child) -> None:
        data = os.read(child.output.fileno(), 1 << 16)
        if data:
            for line in child.take(data):
                self._on_output(line)
            return
        self._selector.unregister(child.output)
        child.process.wait()
        self._dead.append(child)

    def _read_events(self, fd: int) -> None:
        data = os.read(fd, 1 << 16)
        if not data:
            self._selector.unregister(fd)
            os.close(fd)
            return
        *lines, self._events = (self._events + data).split(b"\n")
        for line in lines:
            self._on_event(json.loads(line))

    def _end_all(self) -> None:
        left = shared_files.of(child.process.pid for child in self._children if child.process.poll() is None)
        for child in self._children:
            child.process.kill()
        for child in self._children:
            child.process.wait()
            child.output.close()
        shared_files.remove(left)
        for key in list(self._selector.get_map().values()):
            if key.data is None:
                os.close(key.fd)
        self._selector.close()
