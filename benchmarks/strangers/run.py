# SPDX-License-Identifier: MIT
"""The command: two hosts with a secret, and a third one that opens connections to a listener without a pause."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import bagua_net
from benchmarks import ROOT, command_line
from benchmarks.loads import in_turn
from benchmarks.loads.processes import Placement, RankFailed, running
from benchmarks.networks import namespaces, ring
from benchmarks.networks.namespaces import Host
from benchmarks.report import about, jsonl, machine
from benchmarks.report.jsonl import Reading
from benchmarks.strangers import report
from tests.strangers import storm
from tests.strangers.protocol import Handle

#: The beginning of the connection, and what the end of a window takes.
_BEGIN_S, _SETTLE_S = 3.0, 1.0


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = command_line.parser("strangers", __doc__)
    parser.add_argument("--pairs", type=int, default=7, help="of windows, with and without: %(default)s")
    parser.add_argument("--window", type=float, default=5.0, help="seconds of a window: %(default)s")
    parser.add_argument("--rate", type=int, default=1000, help="connections that are opened in a second: %(default)s")
    parser.add_argument("--mbits", type=float, default=1000.0, help="of a host's card: %(default)s")
    parser.add_argument("--streams", type=int, default=4, help="of the connection: %(default)s")
    parser.add_argument("--size", type=int, default=1 << 20, help="bytes of a message: %(default)s")
    parser.add_argument("--inflight", type=int, default=8, help="messages that are under way: %(default)s")
    parser.add_argument("--plain", action="store_true", help="proofs alone: the messages are not encrypted")
    parser.add_argument("--build", type=Path, default=ROOT / "build-bench", help="the build folder of benchmarks/")
    parser.add_argument("--plugin", type=Path, help="the plugin: that of the installed package")
    parser.add_argument("--output", type=Path, help="the file of readings: results/strangers/DATE.jsonl")
    parser.add_argument("--report", type=Path, metavar="FILE", help="only print the table of that file")
    return command_line.parsed(parser, argv, "two pairs of a second", pairs=2, window=1.0)


@contextlib.contextmanager
def _secret_file() -> Iterator[str]:
    with tempfile.NamedTemporaryFile() as file:  # of mode 0600
        file.write(os.urandom(32))
        file.flush()
        yield file.name


def _rate(sender: Host, seconds: float) -> float:
    """MB/s that the host sends."""
    begun, before = time.monotonic(), ring.sent_bytes(sender)
    time.sleep(seconds)
    ended, after = time.monotonic(), ring.sent_bytes(sender)
    return (after - before) / (ended - begun) / 1e6


def _window(arguments: argparse.Namespace, hosts: Sequence[Host], known: Handle, with_strangers: bool) -> Reading:
    if not with_strangers:
        time.sleep(_SETTLE_S)
        return {"mb_per_s": round(_rate(hosts[0], arguments.window), 2), "strangers_per_s": 0}
    prefix = ("ip", "netns", "exec", hosts[2].namespace)
    with storm.against(known, arguments.rate, prefix) as strangers:
        begun = time.monotonic()
        time.sleep(_SETTLE_S)
        rate = _rate(hosts[0], arguments.window)
        seconds = time.monotonic() - begun
    return {"mb_per_s": round(rate, 2), "strangers_per_s": round(strangers.opened / seconds)}


def _settings(arguments: argparse.Namespace, secret_file: str) -> dict[str, str]:
    streams = str(arguments.streams)
    return {
        "BAGUA_NET_SECRET_FILE": secret_file,
        "BAGUA_NET_ENCRYPT": "0" if arguments.plain else "1",
        "BAGUA_NET_MIN_NSTREAMS": streams,
        "BAGUA_NET_NSTREAMS": streams,
    }


def _measured(arguments: argparse.Namespace, plugin: Path) -> Iterator[Reading]:
    seconds = 2 * _BEGIN_S + 2 * arguments.pairs * (2 * _SETTLE_S + arguments.window)
    specs = [in_turn.spec(rank, arguments, plugin, seconds) for rank in range(2)]
    limits = (arguments.mbits, arguments.mbits, machine.congestion_control())
    with _secret_file() as file, ring.hosts(3, *limits) as hosts:
        placements = [Placement(number, host, _settings(arguments, file)) for number, host in enumerate(hosts[:2])]
        with running(in_turn.MODULE, placements) as ranks:
            handles = in_turn.begin(ranks, specs)
            time.sleep(_BEGIN_S)
            for pair in range(arguments.pairs):
                for with_strangers in (pair % 2 == 0, pair % 2 == 1):  # each kind is first in every second pair
                    window = _window(arguments, hosts, Handle.parse(handles[1]), with_strangers)
                    yield {"pair": pair, **window}


def main(argv: Sequence[str]) -> int:
    arguments = _arguments(argv)
    if arguments.report:
        print(report.render(*jsonl.load(arguments.report)), end="")
        return 0
    plugin = arguments.plugin or bagua_net.plugin_path()
    output = command_line.output(arguments, "strangers/DATE.jsonl")
    names = ("rate", "mbits", "streams", "size", "inflight", "plain")
    head = about.this_run("strangers", argv, **{name: getattr(arguments, name) for name in names})
    namespaces.remove_stale()
    windows: list[Reading] = []
    try:
        for window in _measured(arguments, plugin):
            windows.append(window)
            print(report.line(window), file=sys.stderr)
    except (RankFailed, namespaces.NetworkSetupError) as error:
        print(f"strangers: {error}", file=sys.stderr)
        return 1
    output.write_text(jsonl.text(head, windows))
    output.with_suffix(".md").write_text(report.render(head, windows))
    return 0
