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

import pytest

from tests.support import drivers, netns

EXAMPLES = drivers.ROOT / "examples"
RANKS = 2

_SECONDS = 150
#: Wait after the first launcher that fails, and after ending the ranks of a hanging job. torchrun gives its ranks 30.
_GRACE_SECONDS = 40
_MASTER = "10.79.0.1"  # the first of two hosts
_PORT = "29500"
#: Variables that launchers set for their workers. A test that itself runs under a launcher must not pass them on.
_OF_LAUNCHERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "MASTER_ADDR", "MASTER_PORT")


#: faulthandler adds the names of all extension modules to a stack trace: more than a hundred.
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
    """A command on a host, and the variables that it needs in addition."""

    host: Host
    arguments: Sequence[str]
    settings: Mapping[str, str] = field(default_factory=dict)


def needs(*packages: str) -> None:
    """Skips the test where one is not installed. It imports none, which would take seconds."""
    for package in packages:
        spec = importlib.util.find_spec(package)
        if spec is None or spec.origin is None:
            pytest.skip(f"{package} is not installed")


@contextlib.contextmanager
def hosts(count: int) -> Iterator[list[Host]]:
    """One host or two. Skips the test where namespaces are not possible."""
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
    """A separate host for the job, for launchers that need a certain port. Skips the test like :func:`hosts`."""
    with netns.two_hosts(links=0) as (space, _):
        yield Host(0, "127.0.0.1", "lo", space)


def environment(host: Host, settings: Mapping[str, str]) -> dict[str, str]:
    """This process's environment, on the host's interface, with one thread per rank and no variables of another
    launcher. A process that is aborted prints its stack."""
    network = {"NCCL_SOCKET_IFNAME": host.interface, "GLOO_SOCKET_IFNAME": host.interface, "OMP_NUM_THREADS": "1"}
    inherited = drivers.environment(network | {"PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1", **settings})
    return {name: value for name, value in inherited.items() if name not in _OF_LAUNCHERS or name in settings}


def script(name: str, *options: str) -> list[str]:
    return [str(EXAMPLES / name), *options]


def torchrun(host: Host, of: int, name: str, *options: str, ranks: int = RANKS) -> Command:
    """The command for this one of ``of`` hosts, which have equal numbers of ranks."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks // of)]
    if of == 1:
        launcher += ["--standalone"]
    else:
        launcher += ["--nnodes", str(of), "--node-rank", str(host.number), "--master-addr", _MASTER]
        launcher += ["--master-port", _PORT]
    return Command(host, [*launcher, *script(name, *options)])


def by_itself(host: Host, of: int, name: str, *options: str) -> Command:
    """For scripts that start their ranks themselves; these variables tell several hosts of each other."""
    settings = {"NODE_RANK": str(host.number), "MASTER_ADDR": _MASTER, "MASTER_PORT": _PORT} if of > 1 else {}
    return Command(host, [sys.executable, *script(name, *options)], settings)


@dataclass
class _Started:
    """A running launcher, and the files with the output of it and its ranks."""

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
    """Runs them in parallel and returns the stdout of the first. Fails the test, with all output, where one did not
    end, or failed without printing what is ``forgiven``. No process is left."""
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
    """Waits until all have ended; returns those that have not, in that time or soon after the first failure."""
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
    """A process's descendants, nearest first: launchers put ranks into new sessions and groups, so walk the tree."""
    found = [int(child) for tasks in Path(f"/proc/{pid}/task").glob("*/children") for child in _words(tasks)]
    return found + [other for child in found for other in _descendants(child)]


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:  # it has ended in the meantime
        return []


def _signal(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def _abort(hung: Sequence[_Started]) -> None:
    """Makes ranks print their stacks, and their launchers report that."""
    ranks = [pid for one in hung for pid in reversed(_descendants(one.process.pid))]
    _signal(ranks, signal.SIGABRT)
    deadline = time.monotonic() + _GRACE_SECONDS
    for one in hung:
        with contextlib.suppress(subprocess.TimeoutExpired):
            one.process.wait(max(deadline - time.monotonic(), 0))
    _signal(ranks, signal.SIGKILL)


def _kill(started: Sequence[_Started]) -> None:
    """Kills all their remaining processes, also on separate hosts whose launcher is gone."""
    for one in started:
        _signal([*_descendants(one.process.pid), one.process.pid] if one.process.poll() is None else [], signal.SIGKILL)
        one.process.wait()
        if one.command.host.space:
            _signal(one.command.host.space.processes(), signal.SIGKILL)


def losses(printed: str) -> dict[str, str]:
    """The losses that a script printed for each backend, as text: equal ones are equal to the last digit."""
    rows = re.findall(r"^(\w+) +\d+  ((?:\d+\.\d{9} ?)+)$", printed, re.MULTILINE)
    return {backend: values for backend, values in rows}


def falling(values: str) -> bool:
    """Did the loss decrease?"""
    first, *_, last = map(float, values.split())
    return last < first / 3
