# SPDX-License-Identifier: MIT
"""Runs the scripts of examples/ as their launchers would, on one host or on two, and reads what they print.

    with jobs_launch.hosts(2) as hosts:
        commands = [jobs_launch.torchrun(host, len(hosts), "ddp_digits.py") for host in hosts]
        printed = jobs_launch.run(commands)

Two hosts are network namespaces with a cable between them; one host is this machine's loopback interface.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import drivers
import netns
import pytest

EXAMPLES = drivers.ROOT / "examples"
RANKS = 2

_SECONDS = 150
#: After the first launcher that fails, and after the ranks of a job that hangs were ended. torchrun gives its ranks 30.
_GRACE_SECONDS = 40
_MASTER = "10.79.0.1"  # the first of two hosts
_PORT = "29500"
#: What launchers leave to their workers. A test that runs below one must not hand it on.
_OF_LAUNCHERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT")


#: What faulthandler adds to where a process is: the name of every module that is no Python, a hundred and more.
_LONG_LIST = re.compile(r"^Extension modules: .*$", re.MULTILINE)


@dataclass(frozen=True)
class Host:
    """Where commands run. ``number`` counts from 0; the first is where the ranks meet."""

    number: int
    address: str
    interface: str
    space: netns.Host | None = None

    @property
    def prefix(self) -> Sequence[str]:
        return self.space.prefix if self.space else ()


HERE = Host(0, "127.0.0.1", "lo")


@dataclass(frozen=True)
class Command:
    """What runs on a host, and the variables it needs besides the usual ones."""

    host: Host
    arguments: Sequence[str]
    settings: Mapping[str, str] = field(default_factory=dict)


def needs(*packages: str) -> None:
    """Skips the test where one is not installed. None is imported: that is the job's affair, and takes seconds."""
    for package in packages:
        spec = importlib.util.find_spec(package)
        if spec is None or spec.origin is None:
            pytest.skip(f"{package} is not installed")


@contextlib.contextmanager
def hosts(count: int) -> Iterator[list[Host]]:
    """One host or two. Skips the test where there can be no namespaces."""
    if count == 1:
        yield [HERE]
        return
    with netns.two_hosts() as spaces:
        made = [Host(i, f"10.79.0.{i + 1}", "link0", space) for i, space in enumerate(spaces)]
        for host, space in zip(made, spaces, strict=True):
            space.ip("address", "add", f"{host.address}/24", "dev", "link0")
        assert made[0].address == _MASTER
        yield made


@contextlib.contextmanager
def own_host() -> Iterator[Host]:
    """A host of the job's own, for launchers that take a port by its number. Skips the test like :func:`hosts`."""
    with netns.two_hosts(links=0) as (space, _):
        yield Host(0, "127.0.0.1", "lo", space)


def environment(host: Host, settings: Mapping[str, str]) -> dict[str, str]:
    """This process's, on the host's interface, one thread per rank, and without a trace of another launcher. A process
    that is aborted says where it is."""
    network = {"NCCL_SOCKET_IFNAME": host.interface, "GLOO_SOCKET_IFNAME": host.interface, "OMP_NUM_THREADS": "1"}
    inherited = drivers.environment(network | {"PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1", **settings})
    return {name: value for name, value in inherited.items() if name not in _OF_LAUNCHERS or name in settings}


def script(name: str, *options: str) -> list[str]:
    return [str(EXAMPLES / name), *options]


def torchrun(host: Host, of: int, name: str, *options: str, ranks: int = RANKS) -> Command:
    """What is to be run on this one of ``of`` hosts, which have the ranks in equal parts."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks // of)]
    if of == 1:
        launcher += ["--standalone"]
    else:
        launcher += ["--nnodes", str(of), "--node-rank", str(host.number), "--master-addr", _MASTER]
        launcher += ["--master-port", _PORT]
    return Command(host, [*launcher, *script(name, *options)])


def by_itself(host: Host, of: int, name: str, *options: str) -> Command:
    """For scripts that start their ranks themselves; several hosts are told of each other by these variables."""
    settings = {"NODE_RANK": str(host.number), "MASTER_ADDR": _MASTER, "MASTER_PORT": _PORT} if of > 1 else {}
    return Command(host, [sys.executable, *script(name, *options)], settings)


@dataclass
class _Started:
    """A launcher that runs, and the files with what it and its ranks write."""

    command: Command
    process: subprocess.Popen[bytes]
    out: Path
    err: Path

    def printed(self) -> str:
        return self.out.read_text(errors="replace")

    def failed(self, forgiven: str) -> bool:
        said = self.err.read_text(errors="replace")
        return self.process.returncode != 0 and not (forgiven and forgiven in said)

    def shown(self) -> str:
        name, err = " ".join(self.command.arguments), self.err.read_text(errors="replace")
        return f"{name}\nstatus {self.process.poll()}\n{self.printed()[-4000:]}{_LONG_LIST.sub('', err)[-12000:]}"


def run(commands: Sequence[Command], seconds: int = _SECONDS, *, forgiven: str = "") -> str:
    """Runs them side by side. What the first wrote to stdout; fails the test, with everything, where one did not end,
    or failed without saying what is ``forgiven``. No process is left."""
    with tempfile.TemporaryDirectory() as scratch, contextlib.ExitStack() as cleanup:
        started: list[_Started] = []
        cleanup.callback(_kill, started)
        for number, command in enumerate(commands):
            started.append(_start(command, Path(scratch, str(number))))
        hung = _watch(started, seconds)
        if hung:
            names = ", ".join(str(one.command.host.number) for one in hung)
            _abort(hung)
            reason = f"the launchers of the hosts {names} were not over after {seconds} s; where their ranks were:"
            pytest.fail("\n".join([reason, *(one.shown() for one in started)]), pytrace=False)
        if any(one.failed(forgiven) for one in started):
            pytest.fail("\n".join(one.shown() for one in started), pytrace=False)
        return started[0].printed()


def _start(command: Command, stem: Path) -> _Started:
    out, err = stem.with_suffix(".out"), stem.with_suffix(".err")
    with out.open("wb") as stdout, err.open("wb") as stderr:
        process = subprocess.Popen(
            [*command.host.prefix, *command.arguments],
            env=environment(command.host, command.settings),
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
        )
    return _Started(command, process, out, err)


def _watch(started: Sequence[_Started], seconds: float) -> list[_Started]:
    """Until all have ended; those that have not, in that time or soon after the first that failed."""
    deadline = time.monotonic() + seconds
    with contextlib.ExitStack() as stack, selectors.DefaultSelector() as running:
        for one in started:
            end = os.pidfd_open(one.process.pid)
            stack.callback(os.close, end)
            running.register(end, selectors.EVENT_READ, one)
        while running.get_map():
            ended = running.select(max(deadline - time.monotonic(), 0))
            if not ended:
                break
            for key, _ in ended:
                running.unregister(key.fd)
                if key.data.process.wait():
                    deadline = min(deadline, time.monotonic() + _GRACE_SECONDS)
        return [key.data for key in running.get_map().values()]


def _descendants(pid: int) -> list[int]:
    """Of a process, nearest first. Launchers give ranks sessions and groups of their own, so it takes the tree."""
    found = [int(child) for tasks in Path(f"/proc/{pid}/task").glob("*/children") for child in _words(tasks)]
    return found + [other for child in found for other in _descendants(child)]


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:  # it has ended meanwhile
        return []


def _signal(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _abort(hung: Sequence[_Started]) -> None:
    """Has ranks write where they are, and their launchers what they make of that."""
    ranks = [pid for one in hung for pid in reversed(_descendants(one.process.pid))]
    _signal(ranks, signal.SIGABRT)
    deadline = time.monotonic() + _GRACE_SECONDS
    for one in hung:
        with contextlib.suppress(subprocess.TimeoutExpired):
            one.process.wait(max(deadline - time.monotonic(), 0))
    _signal(ranks, signal.SIGKILL)


def _kill(started: Sequence[_Started]) -> None:
    """Everything that is left of them, also on hosts of their own whose launcher is gone."""
    for one in started:
        _signal([*_descendants(one.process.pid), one.process.pid] if one.process.poll() is None else [], signal.SIGKILL)
        one.process.wait()
        if one.command.host.space:
            _signal(one.command.host.space.processes(), signal.SIGKILL)


def losses(printed: str) -> dict[str, str]:
    """What a script printed of each backend: its losses, as text, so that equal ones are equal to the last digit."""
    rows = re.findall(r"^(\w+) +\d+  ((?:\d+\.\d{9} ?)+)$", printed, re.MULTILINE)
    return {backend: values for backend, values in rows}


def falling(values: str) -> bool:
    """Did it learn anything?"""
    first, *_, last = map(float, values.split())
    return last < first / 3
