# SPDX-License-Identifier: MIT
"""How the doctor reaches the hosts that it examines: through a command such as ssh for each, or where all run it.

Requests and answers never go over the connections that are examined, so that a firewall between the hosts is a finding
and no obstacle, as long as ssh passes.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import shlex
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from ..._bench.ranks.placement import Placement
from ..._bench.ranks.rendezvous import Client, Server
from ..._errors import BaguaNetError
from .host import MARK, Host

Request = dict[str, Any]
Reply = dict[str, Any]
_END_S = 5.0
_KEPT_LINES = 20
#: Settings of a job that its launcher gives to every host.
_SETTINGS = ("NCCL_", "BAGUA_NET_", "GLOO_")
_SECRET = "BAGUA_NET_BENCH_TOKEN"


class PeerLost(BaguaNetError):
    """A host cannot be examined: its command failed, or it does not answer."""


class Hosts(Protocol):
    """Those that are examined, by their number."""

    names: list[str]
    """As the user calls them; "": as they call themselves."""

    def ask(self, requests: Mapping[int, Request], seconds: float) -> dict[int, Reply]:
        """Puts one request to each of these hosts at once, and waits for the answers.

        Raises:
            PeerLost, RendezvousFailed: one has not answered in that time.
        """


# ---- a command for each ----


def command(through: str, host: str, python: str) -> list[str]:
    """The words that start a host's part there.

    Args:
        through: words in front of it; ``{}`` in them is the host, which otherwise follows them.
    """
    words = shlex.split(through)
    reached = [word.replace("{}", host) for word in words] if "{}" in through else [*words, host]
    return [*reached, *map(shlex.quote, (python, "-m", f"{__package__}.host"))]


class _Remote:
    """One host's part, as a process here that leads to it."""

    def __init__(self, name: str, words: list[str], environment: dict[str, str] | None = None) -> None:
        self._name = name
        try:
            self._process = subprocess.Popen(
                words,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                env=environment,
            )
        except OSError as error:
            raise PeerLost(f"{name}: cannot run {words[0]}: {error.strerror}") from error
        self._answers: queue.Queue[str] = queue.Queue()
        self._said: deque[str] = deque(maxlen=_KEPT_LINES)
        self._readers = [threading.Thread(target=each, daemon=True) for each in (self._hear, self._hear_errors)]
        for reader in self._readers:
            reader.start()

    def _hear(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            _, mark, answer = line.partition(MARK)
            if mark:
                self._answers.put(answer)
        self._answers.put("")

    def _hear_errors(self) -> None:
        assert self._process.stderr is not None
        self._said.extend(line.strip() for line in self._process.stderr if line.strip())

    def tell(self, what: Any) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # it has ended, which its answer says
            self._process.stdin.write(json.dumps(what) + "\n")
            self._process.stdin.flush()

    def answer(self, seconds: float) -> Reply:
        try:
            line = self._answers.get(timeout=seconds)
        except queue.Empty:
            raise PeerLost(f"{self._name}: no answer within {seconds:g} s") from None
        if not line:
            raise PeerLost(f"{self._name}: {self._reason()}")
        return dict(json.loads(line))

    def _reason(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_S)
        self._readers[1].join(_END_S)
        said = self._said[-1] if self._said else f"its command ended with status {self._process.returncode}"
        if "No module named" in said:
            return f"{said}; install bagua_net there at the same path, or name its Python by --python"
        return said

    def end(self) -> None:
        with contextlib.suppress(OSError):
            assert self._process.stdin is not None
            self._process.stdin.close()

    def reap(self) -> None:
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _here() -> tuple[list[str], dict[str, str]]:
    """The same for this host, and its environment."""
    root = str(Path(__file__).resolve().parents[3])
    search = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    return [sys.executable, "-m", f"{__package__}.host"], {**os.environ, "PYTHONPATH": search}


class Commands:
    """This host and others, each reached through a command. A context manager: it ends all of them.

    Args:
        others: names of the other hosts.
        through: see :func:`command`.
        python: the others' Python.
    """

    def __init__(self, others: list[str], through: str, python: str) -> None:
        words, environment = _here()
        self.names = [os.uname().nodename, *others]
        self._remotes: list[_Remote] = []
        try:
            self._remotes.append(_Remote("this host", words, environment))
            self._remotes += [_Remote(each, command(through, each, python)) for each in others]
        except PeerLost:
            self.close()
            raise
        settings = {name: value for name, value in os.environ.items() if name.startswith(_SETTINGS) and name != _SECRET}
        for remote in self._remotes:
            remote.tell(settings)

    def ask(self, requests: Mapping[int, Request], seconds: float) -> dict[int, Reply]:
        for number, request in requests.items():
            self._remotes[number].tell(request)
        return {number: self._remotes[number].answer(seconds) for number in requests}

    def close(self) -> None:
        for each in self._remotes:
            each.end()
        for each in self._remotes:
            each.reap()

    def __enter__(self) -> Commands:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


# ---- the same command on all of them ----


class Meeting:
    """The hosts on which the doctor was started with one rendezvous: rank 0's side. Its context ends the others.

    Args:
        client: of rank 0.
    """

    def __init__(self, client: Client, nranks: int) -> None:
        self.names = [""] * nranks
        self._client = client
        self._host = Host()

    def ask(self, requests: Mapping[int, Request], seconds: float) -> dict[int, Reply]:
        del seconds  # the rendezvous has its own
        replies = _round(self._client, self._host, 0, {str(number): request for number, request in requests.items()})
        return {number: replies[number] for number in requests}

    def __enter__(self) -> Meeting:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._host.close()
        if error is None:
            self._client.all_gather("end")


def _round(client: Client, host: Host, rank: int, requests: Any) -> list[Any]:
    """One round of requests, which rank 0 gives, and of answers."""
    asked = client.all_gather(requests)[0]
    if asked == "end":
        return []
    mine = asked.get(str(rank))
    return client.all_gather(None if mine is None else host.do(mine))


def follow(placement: Placement, timeout_s: float) -> None:
    """The part of a rank other than 0, until rank 0 ends it."""
    (rank,) = placement.ranks
    host = Host()
    with Client(placement.host, placement.port, placement.token, rank, placement.nranks, timeout_s) as client:
        while _round(client, host, rank, None):
            pass
    host.close()


@contextlib.contextmanager
def meeting(placement: Placement, timeout_s: float) -> Iterator[Meeting]:
    """Rank 0's part."""
    with (
        Server(placement.nranks, placement.token, "", placement.port, timeout_s) as server,
        Client("127.0.0.1", server.port, placement.token, 0, placement.nranks, timeout_s) as client,
        Meeting(client, placement.nranks) as hosts,
    ):
        yield hosts
