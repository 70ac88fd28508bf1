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
import time
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Protocol

from ..._bench.ranks.placement import Placement
from ..._bench.ranks.rendezvous import MAX_ROW, Client, RendezvousFailed, Server
from ..._errors import BaguaNetError
from .host import MARK, Host

Request = dict[str, Any]
Reply = dict[str, Any]
_END_S = 5.0
_MOST_BYTES = 16 << 20
_KEPT_LINES = 20
#: What Python, shells and others say where they do not find bagua_net, or Python.
_MISSING = ("No module named", "not found")
#: In a row of requests: the same for all.
_ALL = "*"
#: Settings of a job that its launcher gives to every host.
_SETTINGS = ("NCCL_", "BAGUA_NET_", "GLOO_")
_SECRET = "BAGUA_NET_BENCH_TOKEN"


class PeerLost(BaguaNetError):
    """A host cannot be examined: its command failed, it does not answer, or it answers what nobody understands."""


class Hosts(Protocol):
    """Those that are examined, by their number."""

    names: list[str]
    """As the user calls them; "": as they call themselves."""

    def how(self, number: int) -> str:
        """How a user tries whether one can be reached."""
        ...

    def ask(self, requests: Mapping[int, Request], seconds: float) -> dict[int, Reply]:
        """Puts one request to each of these hosts at once, and waits for the answers. That of a host which has gone, or
        has not answered in that time, has the reason in "lost".

        Raises:
            RendezvousFailed: all are lost.
        """


# ---- a command for each ----


def command(through: str, host: str, python: str) -> list[str]:
    """The words that start a host's part there.

    Args:
        through: words in front of it; ``{}`` in them is the host, which otherwise follows them.
    """
    return [*reach(through, host), *map(shlex.quote, (python, "-m", f"{__package__}.host"))]


def reach(through: str, host: str) -> list[str]:
    words = shlex.split(through)
    return [word.replace("{}", host) for word in words] if "{}" in through else [*words, host]


class _Remote:
    """One host's part, as a process here that leads to it. A thread each writes to it and reads from it, so that one
    that is stopped holds up nobody."""

    def __init__(self, words: list[str], python: str, environment: dict[str, str] | None = None) -> None:
        self._python = python
        self._answers: queue.Queue[str] = queue.Queue()
        self._requests: queue.Queue[str] = queue.Queue()
        self._said: deque[str] = deque(maxlen=_KEPT_LINES)
        self._late = ""
        self._process: subprocess.Popen[str] | None = None
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
            self._said.append(f"cannot run {words[0]}: {error.strerror}")
            self._answers.put("")
            return
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        work = ((self._write, self._process.stdin), (self._hear, self._process.stdout))
        self._threads = [threading.Thread(target=each, args=(pipe,), daemon=True) for each, pipe in work]
        self._errors = threading.Thread(target=self._hear_errors, args=(self._process.stderr,), daemon=True)
        for thread in (*self._threads, self._errors):
            thread.start()

    def _write(self, pipe: IO[str]) -> None:
        with contextlib.suppress(OSError, ValueError):  # it has ended, which its answer says
            while line := self._requests.get():
                pipe.write(line)
                pipe.flush()
        with contextlib.suppress(OSError, ValueError):
            pipe.close()

    def _hear(self, pipe: IO[str]) -> None:
        while line := pipe.readline(_MOST_BYTES):
            _, mark, answer = line.partition(MARK)
            if mark:
                self._answers.put(answer)
        self._answers.put("")

    def _hear_errors(self, pipe: IO[str]) -> None:
        while line := pipe.readline(_MOST_BYTES):
            if line.strip():
                self._said.append(line.strip())

    def tell(self, what: Any) -> None:
        self._requests.put(json.dumps(what) + "\n")

    def answer(self, deadline: float, seconds: float) -> Reply:
        if self._late:
            return {"lost": self._late}
        try:
            line = self._answers.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            self._late = f"no answer within {seconds:g} s"  # a later one would be taken for the next request's
            return {"lost": self._late}
        if not line:
            self._answers.put("")  # nor will there be another one
            return {"lost": self._reason()}
        try:
            return dict(json.loads(line))
        except (TypeError, ValueError):
            return {"lost": "its answer is cut off, or of another program"}

    def _reason(self) -> str:
        if self._process is None:
            return self._said[-1]
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_S)
        self._errors.join(_END_S)
        status, said = self._process.returncode, list(self._said)
        missing = next((line for line in said if any(each in line for each in (*_MISSING, self._python))), "")
        if "_doctor" in missing:
            return f"{missing}; it has an older bagua_net: install the same version there"
        if missing:
            return f"{missing}; install bagua_net there at the same path, or name its Python by --python"
        if status == 0:
            return "its command ended at once; it needs its input: kubectl and docker exec have -i for that"
        return said[-1] if said else f"its command ended with status {status}"

    def end(self) -> None:
        self._requests.put("")

    def reap(self, deadline: float) -> None:
        """Gone by then, in order or not."""
        if self._process is None:
            return
        for end in (self._process.terminate, self._process.kill):
            try:
                self._process.wait(max(0.1, deadline - time.monotonic()))
                return
            except subprocess.TimeoutExpired:
                end()
        self._process.wait()


def _here() -> tuple[list[str], dict[str, str]]:
    """The same for this host, and its environment."""
    root = str(Path(__file__).resolve().parents[3])
    search = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    return [sys.executable, "-m", f"{__package__}.host"], {**os.environ, "PYTHONPATH": search, "PYTHONSAFEPATH": "1"}


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
        self._ways = [shlex.join(reach(through, other)) for other in others]
        self._remotes = [
            _Remote(words, words[0], environment),
            *(_Remote(command(through, each, python), python) for each in others),
        ]
        settings = {name: value for name, value in os.environ.items() if name.startswith(_SETTINGS) and name != _SECRET}
        for remote in self._remotes:
            remote.tell(settings)

    def how(self, number: int) -> str:
        if number == 0:
            return "the message above"
        return f"`{self._ways[number - 1]} true`, which must print nothing and end with status 0"

    def ask(self, requests: Mapping[int, Request], seconds: float) -> dict[int, Reply]:
        for number, request in requests.items():
            self._remotes[number].tell(request)
        deadline = time.monotonic() + seconds
        return {number: self._remotes[number].answer(deadline, seconds) for number in requests}

    def close(self) -> None:
        for each in self._remotes:
            each.end()
        deadline = time.monotonic() + _END_S
        for each in self._remotes:
            each.reap(deadline)

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
        #: something fails, for the exit status of all
        self.failed = False
        self._client = client
        self._host = Host()

    def how(self, number: int) -> str:
        return "the log of that rank"

    def ask(self, requests: Mapping[int, Request], seconds: float) -> dict[int, Reply]:
        del seconds  # the rendezvous has its own
        first = next(iter(requests.values()))
        same = len(requests) == len(self.names) and all(each == first for each in requests.values())
        row = {_ALL: first} if same else {str(number): request for number, request in requests.items()}
        replies = _round(self._client, self._host, 0, {"ask": row})
        return {number: replies[number] for number in requests}

    def __enter__(self) -> Meeting:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._host.close()
        with contextlib.suppress(RendezvousFailed):  # they have gone
            self._client.all_gather({"end": self.failed or error is not None})


def _round(client: Client, host: Host, rank: int, own: Any) -> list[Any]:
    """One round of requests, which rank 0 gives, and of answers.

    Raises:
        _Over: rank 0 ends the examination.
    """
    row = client.all_gather(own)[0]
    if "end" in row:
        raise _Over(bool(row["end"]))
    asked = row["ask"]
    mine = asked.get(_ALL, asked.get(str(rank)))
    return client.all_gather(None if mine is None else _fitting(host.do(mine)))


def _fitting(reply: Reply) -> Reply:
    """A host's ways to all others may be too many for a row."""
    if len(json.dumps(reply)) <= MAX_ROW:
        return reply
    return {"lost": "its answer is too long; examine fewer hosts at a time, or one interface of each"}


class _Over(Exception):
    """Its argument: something fails."""


def follow(placement: Placement, timeout_s: float) -> bool:
    """The part of a rank other than 0, until rank 0 ends it. True: something fails.

    Raises:
        RendezvousFailed: rank 0, or another one, is not there or has gone.
    """
    (rank,) = placement.ranks
    host = Host()
    with Client(placement.host, placement.port, placement.token, rank, placement.nranks, timeout_s) as client:
        try:
            while True:
                _round(client, host, rank, None)
        except _Over as over:
            return bool(over.args[0])
        finally:
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
