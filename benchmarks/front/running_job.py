# SPDX-License-Identifier: MIT
"""Draws what `bagua-net top`, `trace` and `export` show of a job: two ranks on two hosts, paths of unequal rates
between them."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pty
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.text import Text

import bagua_net
from benchmarks import ROOT, command_line
from benchmarks.front import dashboard, perfetto
from benchmarks.networks import namespaces
from benchmarks.networks.namespaces import Host, Hosts
from benchmarks.report import chart, machine

PICTURE = ROOT / "docs" / "images" / "top.svg"
RECORDING = PICTURE.with_name("trace.png")
DASHBOARD = PICTURE.with_name("dashboard.png")
#: The words after `bagua-net`, one screen below the other.
SCREENS = (["top"], ["top", "--streams", "--filter", "0/2"])
#: A hash puts each flow on one of the paths.
_PATHS_MBITS = (900, 500, 250, 100)
_SEED = 1
_STREAMS = "4"
#: Of the terminal: what the table needs with all its columns and the ports of streams.
_WIDTH = 120
_PORT = 29600
_MEETING_S = 60.0
#: From the first connection on, until the rates have settled.
_SETTLED_S = 5.0
#: Of a recording.
_SECONDS = "1"
#: For the dashboard: so long, and then as long with paths of half their rates.
_WATCHED_S = 30.0
_FONT = re.compile(r"@font-face \{.*?\}", re.DOTALL)


def _environment(directory: Path) -> dict[str, str]:
    """This process's, with the package that it has imported, and counters of this job alone."""
    return {
        **os.environ,
        "PYTHONPATH": str(Path(bagua_net.__file__).parents[1]),
        "BAGUA_NET_STATS_DIR": str(directory),
    }


@contextmanager
def _rank(host: Host, rank: int, meeting: str, environment: Mapping[str, str]) -> Iterator[None]:
    """A rank of an allreduce that goes on for longer than anybody looks."""
    words = ["--rendezvous", meeting, "--ranks", "2", "--rank", str(rank), "--ifname", host.interface]
    words += ["--transport", "bagua", "--min", "64M", "--max", "64M", "--iters", "10000", "--rounds", "1"]
    settings = {"BAGUA_NET_MIN_NSTREAMS": _STREAMS, "BAGUA_NET_NSTREAMS": _STREAMS}
    process = subprocess.Popen(
        ["ip", "netns", "exec", host.namespace, sys.executable, "-m", "bagua_net", "bench", *words],
        env={**environment, **settings, "RANK": str(rank), "WORLD_SIZE": "2"},
        stdout=subprocess.DEVNULL,
    )
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def _screen(words: Sequence[str], environment: Mapping[str, str]) -> str:
    """What the command prints on a terminal, with its colours.

    Raises:
        CalledProcessError: it failed.
    """
    controller, terminal = pty.openpty()
    command = [sys.executable, "-m", "bagua_net", *words, "--once"]
    with subprocess.Popen(
        command, env={**environment, "COLUMNS": str(_WIDTH), "TERM": "xterm"}, stdout=terminal
    ) as process:
        os.close(terminal)
        printed = b""
        with contextlib.suppress(OSError):  # the terminal's end
            while part := os.read(controller, 1 << 16):
                printed += part
    os.close(controller)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return printed.decode().replace("\r\n", "\n").rstrip()


def drawn(screens: Mapping[str, str]) -> str:
    """An SVG of a terminal: each command, and what it printed."""
    console = Console(record=True, width=_WIDTH, file=io.StringIO(), highlight=False, emoji=False)
    for command, printed in screens.items():
        console.print(Text(f"$ {command}", style="green"))
        console.print(Text.from_ansi(printed), end="\n\n")
    return _FONT.sub("", console.export_svg(title=""))  # rich's fonts would come from elsewhere


def _await_counters(directory: Path) -> None:
    """Raises TimeoutError where the ranks do not meet."""
    deadline = time.monotonic() + _MEETING_S
    while len(list(directory.glob("*/[0-9]*"))) < 2:
        if time.monotonic() > deadline:
            raise TimeoutError(f"the ranks have not met within {_MEETING_S:.0f} s")
        time.sleep(0.1)


@contextmanager
def _job() -> Iterator[tuple[Hosts, dict[str, str]]]:
    """Yields its hosts, and the environment of commands that look at it."""
    with tempfile.TemporaryDirectory() as name, namespaces.veth(machine.congestion_control()) as hosts:
        namespaces.shape(hosts, _PATHS_MBITS)
        namespaces.hash_flows(hosts, len(_PATHS_MBITS), _SEED)
        environment, meeting = _environment(Path(name)), f"{hosts[0].address}:{_PORT}"
        with _rank(hosts[0], 0, meeting, environment), _rank(hosts[1], 1, meeting, environment):
            _await_counters(Path(name))
            time.sleep(_SETTLED_S)
            yield hosts, environment


def _record(environment: Mapping[str, str], output: Path) -> None:
    """Of rank 0.

    Raises:
        CalledProcessError: a command failed.
    """
    command = [sys.executable, "-m", "bagua_net"]
    listed = subprocess.run([*command, "top", "--json"], env=environment, stdout=subprocess.PIPE, check=True).stdout
    (pid,) = (each["process"]["pid"] for each in json.loads(listed) if each["process"]["rank"] == "0")
    words = ["trace", str(pid), "--seconds", _SECONDS, "--output", str(output)]
    subprocess.run([*command, *words], env=environment, check=True)


def _watch(hosts: Hosts, environment: Mapping[str, str], directory: Path, output: Path) -> None:
    """The dashboard's panels of the time before the paths become slower, and after it."""
    with dashboard.server(environment, directory) as address:
        time.sleep(2 * _SETTLED_S)  # until there are rates
        begin = time.time()
        time.sleep(_WATCHED_S)
        namespaces.reshape(hosts, [rate // 2 for rate in _PATHS_MBITS])
        time.sleep(_WATCHED_S)
        dashboard.draw(address, begin, time.time(), output)


def _draw(top: Path, trace: Path | None, panels: Path | None) -> None:
    with tempfile.TemporaryDirectory() as name:
        recording = Path(name) / "trace.json"
        with _job() as (hosts, environment):
            screens = {" ".join(["bagua-net", *words]): _screen(words, environment) for words in SCREENS}
            if trace:
                _record(environment, recording)
            if panels:
                _watch(hosts, environment, Path(name), panels)
        top.write_text(drawn(screens))
        chart.compact(top)
        if trace:
            perfetto.draw(recording, trace)


def main(argv: Sequence[str]) -> int:
    parser = command_line.parser("running-job", __doc__)
    parser.add_argument("--output", type=Path, default=PICTURE, help="the picture of top: docs/images/top.svg")
    parser.add_argument("--trace", type=Path, metavar="PNG", help="draw a recording in Perfetto's interface as well")
    parser.add_argument("--dashboard", type=Path, metavar="PNG", help="draw what Prometheus gets as well")
    options = parser.parse_args(argv)
    if options.dashboard and (missing := dashboard.missing()):
        parser.error(f"--dashboard: {missing}")
    if options.trace and (missing := perfetto.missing()):
        parser.error(f"--trace: {missing}")
    _draw(options.output, options.trace, options.dashboard)
    return 0
