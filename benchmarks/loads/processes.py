# SPDX-License-Identifier: MIT
"""The processes of one reading: started together, controlled by lines of JSON, and all ended with the reading."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from benchmarks import ROOT
from benchmarks.networks.namespaces import Host, Hosts

#: Prefixes of the variables that transports read. Those of the caller's shell must not leak into a measurement.
_SETTINGS = ("NCCL_", "BAGUA_NET_", "GLOO_")


class RankFailed(Exception):
    """A rank reported an error, died, or did not answer in time; the text ends with its stderr."""


def _environment(host: Host, settings: Mapping[str, str]) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(_SETTINGS)}
    network = {"NCCL_SOCKET_IFNAME": f"={host.interface}", "NCCL_SOCKET_FAMILY": "AF_INET"}
    # What one reading's paths have learned is of another network than the next one's, at the same addresses.
    network |= {"BAGUA_NET_PATH_MEMORY": "0"}
    return {**inherited, **network, "GLOO_SOCKET_IFNAME": host.interface, "NCCL_DEBUG": "WARN", **settings}


class RankProcess:
    """A rank process in the namespace of its host, and the pipes to it."""

    def __init__(self, number: int, module: str, host: Host, settings: Mapping[str, str]) -> None:
        self._number = number
        self._pending = b""
        self._failed = False
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 (closed by end)
        command = ["ip", "netns", "exec", host.namespace, sys.executable, "-m", module]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env=_environment(host, settings),
            cwd=ROOT,  # where -m finds the package
        )

    def send(self, line: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line.encode())
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._failure(f"ended with status {self._status()}") from None

    def receive(self, timeout_s: float) -> dict[str, Any]:
        """The next line from the rank.

        Raises:
            RankFailed: it reported an error, ended, or sent nothing for ``timeout_s`` seconds.
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
        """Exit status of a process that closed its pipe; negative: killed by this signal."""
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
        """Waits for the process and kills it after the timeout. The exit status is ignored."""
        try:
            self._process.communicate(timeout=timeout_s)
        except (subprocess.TimeoutExpired, BrokenPipeError):
            self._process.kill()
            self._process.communicate()
        self._stderr.close()

    def final_error(self, timeout_s: float = 0.5) -> str:
        """Kills the process. Returns the error it had failed with, often the cause of its peer's failure; else ""."""
        if self._failed:
            self._process.kill()
            return ""
        try:
            self.receive(timeout_s)
        except RankFailed as error:
            return "" if self._process.poll() is None else str(error)
        finally:
            self._process.kill()
        return ""


def place(hosts: Hosts, ranks: int) -> list[Host]:
    """The host of each rank: the first half of the ranks on the first host."""
    return [hosts[rank * len(hosts) // ranks] for rank in range(ranks)]


@dataclass(frozen=True)
class Placement:
    """What a rank's process is started with."""

    rank: int
    host: Host
    settings: Mapping[str, str]
    """Environment variables."""


@contextmanager
def running(module: str, placements: Sequence[Placement]) -> Iterator[list[RankProcess]]:
    """One process of ``module`` per placement. All have ended after the block.

    Raises:
        RankFailed: as raised in the block, with the errors of the other ranks added.
    """
    ranks: list[RankProcess] = []
    try:
        for each in placements:
            ranks.append(RankProcess(each.rank, module, each.host, each.settings))
        yield ranks
    except RankFailed as error:
        said = [str(error), *filter(None, (rank.final_error() for rank in ranks))]
        raise RankFailed("\n".join(dict.fromkeys(said))) from None
    finally:
        for rank in ranks:
            rank.end()
