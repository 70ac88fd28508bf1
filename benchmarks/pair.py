# SPDX-License-Identifier: MIT
"""Two rank processes, brought together and made to carry one load: one reading of the track."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from network import Host, Hosts
from rank import RankSpec, spec_line

_RANK = Path(__file__).with_name("rank.py")
_SETUP_S = 60.0
#: Transports read these; what the caller's shell sets must not leak into a measurement.
_SETTINGS = ("NCCL_", "BAGUA_NET_")


class RankFailed(Exception):
    """A rank reported an error, died, or did not answer in time; the text ends with what it wrote to stderr."""


@dataclass(frozen=True)
class Reading:
    """One measured value. ``per_rank`` holds what each rank saw, ``value`` is what the tables show."""

    value: float
    per_rank: list[float]


def _environment(host: Host, settings: Mapping[str, str]) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(_SETTINGS)}
    network = {"NCCL_SOCKET_IFNAME": f"={host.interface}", "NCCL_SOCKET_FAMILY": "AF_INET"}
    return {**inherited, **network, "NCCL_DEBUG": "WARN", **settings}


class _Rank:
    """A rank process in the namespace of its host, and the conversation with it."""

    def __init__(self, spec: RankSpec, host: Host, settings: Mapping[str, str]) -> None:
        self._number = spec.rank
        self._pending = b""
        self._failed = False
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 (closed by end)
        command = ["ip", "netns", "exec", host.namespace, sys.executable, str(_RANK)]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env=_environment(host, settings),
        )
        self.tell(spec_line(spec))

    def tell(self, line: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line.encode())
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._failure(f"ended with status {self._status()}") from None

    def hear(self, timeout_s: float) -> dict[str, Any]:
        """The next line that the rank answers.

        Raises:
            RankFailed: it answered with an error, ended, or said nothing for ``timeout_s`` seconds.
        """
        assert self._process.stdout is not None
        pipe = self._process.stdout.fileno()
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._pending:
            if not select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise self._failure(f"did not answer for {timeout_s:.0f} s")
            part = os.read(pipe, 1 << 16)
            if not part:
                raise self._failure(f"ended with status {self._status()}")
            self._pending += part
        line, self._pending = self._pending.split(b"\n", 1)
        reply: dict[str, Any] = json.loads(line)
        if "error" in reply:
            raise self._failure(f"failed: {reply['error']}")
        return reply

    def _status(self) -> str:
        """Exit status of a process that closed its pipe; negative: the signal that ended it."""
        try:
            return str(self._process.wait(5.0))
        except subprocess.TimeoutExpired:
            return "unknown"

    def _failure(self, what: str) -> RankFailed:
        self._failed = True
        self._stderr.seek(0)
        said = self._stderr.read().decode(errors="replace").strip()[-2000:]
        return RankFailed(f"rank {self._number} {what}" + (f"; stderr:\n{said}" if said else ""))

    def end(self, timeout_s: float = 10.0) -> None:
        """Waits for the process, and kills it if it does not end by itself. Its exit status does not matter here."""
        try:
            self._process.communicate(timeout=timeout_s)
        except (subprocess.TimeoutExpired, BrokenPipeError):
            self._process.kill()
            self._process.communicate()
        self._stderr.close()

    def last_words(self, timeout_s: float = 0.5) -> str:
        """Kills the process. Returns how it had failed by itself: often the reason of its peer's failure; else ""."""
        if self._failed:
            self._process.kill()
            return ""
        try:
            self.hear(timeout_s)
        except RankFailed as error:
            return "" if self._process.poll() is None else str(error)
        finally:
            self._process.kill()
        return ""


def _load_time_s(spec: RankSpec) -> float:
    """Seconds after which a load has certainly failed. What these figures say is slower than anything measured here."""
    if spec.work == "pingpong":
        return 30 + (spec.warm_up_rounds + spec.rounds) * (0.001 + 2 * spec.size / 50e6)
    backlog = 2 * spec.lanes * spec.inflight * spec.size
    return 30 + spec.warm_up_s + spec.window_s + backlog / 1e6


def _converse(ranks: tuple[_Rank, _Rank], spec: RankSpec) -> list[dict[str, Any]]:
    handles = [rank.hear(_SETUP_S)["handles"] for rank in ranks]
    for rank, peer_handles in zip(ranks, reversed(handles), strict=True):
        rank.tell(json.dumps(peer_handles) + "\n")
    for rank in ranks:
        rank.hear(_SETUP_S)
    for rank in ranks:
        rank.tell("go\n")
    replies = [rank.hear(_load_time_s(spec)) for rank in ranks]
    for rank in ranks:
        rank.tell("close\n")
    for rank in ranks:
        rank.hear(_SETUP_S)
    return replies


def _reading(work: str, replies: list[dict[str, Any]]) -> Reading:
    if work == "pingpong":
        half_us = float(replies[0]["half_us"])
        return Reading(half_us, [half_us])
    rates = [reply["bytes"] / reply["seconds"] / 1e9 for reply in replies]
    return Reading(sum(rates) / len(rates), rates)


def measure(spec: RankSpec, hosts: Hosts, settings: Mapping[str, str]) -> Reading:
    """Runs one load between two fresh processes. ``spec`` is rank 0's; ``settings`` go into their environment.

    Returns:
        GB/s received per rank (mean of both) for a stream; half the median round trip in µs for ping-pong.

    Raises:
        RankFailed: a rank failed. Both have ended when this returns or raises.
    """
    specs = [replace(spec, rank=number, address=host.address) for number, host in enumerate(hosts)]
    ranks: list[_Rank] = []
    try:
        ranks = [_Rank(one, host, settings) for one, host in zip(specs, hosts, strict=True)]
        return _reading(spec.work, _converse((ranks[0], ranks[1]), spec))
    except RankFailed as error:
        said = [str(error), *filter(None, (rank.last_words() for rank in ranks))]
        raise RankFailed("\n".join(dict.fromkeys(said))) from None
    finally:
        for rank in ranks:
            rank.end()
