# SPDX-License-Identifier: MIT
"""The command: rings of several sizes, with streams that scale and with as many from the start.

Each host sends on what has come, as in a ring allreduce, over a network that limits every flow to a sixteenth of what
a host may send.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import bagua_net
from benchmarks import ROOT, command_line
from benchmarks.loads import in_turn
from benchmarks.loads.processes import Placement, RankFailed, running
from benchmarks.networks import namespaces, ring
from benchmarks.networks.namespaces import Host
from benchmarks.report import about, jsonl, machine
from benchmarks.rings import report

_STREAMS = 16
_NAP_US = 300
_FROM_THE_START = {"BAGUA_NET_MIN_NSTREAMS": str(_STREAMS), "BAGUA_NET_NSTREAMS": str(_STREAMS)}
_REMEMBERS = {"BAGUA_NET_PATH_MEMORY": "1"}
_MEMORY = Path(f"/dev/shm/bagua-net-paths-{os.geteuid()}")


def _from_to(text: str) -> tuple[int, int]:
    first, _, last = text.partition(",")
    if not (first.isdigit() and last.isdigit() and 0 < int(first) < int(last)):
        raise argparse.ArgumentTypeError(f"{text}: not two seconds such as 120,180")
    return int(first), int(last)


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = command_line.parser("rings", __doc__)
    parser.add_argument("--hosts", default="4,12,24,48", help="%(default)s")
    parser.add_argument("--seconds", type=int, default=60, help="of each ring: %(default)s")
    parser.add_argument("--pairs", type=int, default=1, help="%(default)s")
    parser.add_argument("--flow-mbits", type=float, default=6.0, help="of a flow at the most: %(default)s")
    parser.add_argument("--size", type=int, default=65536, help="bytes of a message: %(default)s")
    parser.add_argument("--inflight", type=int, default=4, help="messages that a host may hold: %(default)s")
    help_slow = "seconds between which the last host has half its rate"
    parser.add_argument("--slow", type=_from_to, default=(), metavar="FROM,TO", help=help_slow)
    parser.add_argument("--build", type=Path, default=ROOT / "build-bench", help="the build folder of benchmarks/")
    parser.add_argument("--plugin", type=Path, help="the plugin: that of the installed package")
    parser.add_argument("--baseline", type=Path, help="another build of it")
    parser.add_argument("--output", type=Path, help="the file of readings: results/rings/DATE.jsonl")
    parser.add_argument("--report", type=Path, metavar="FILE", help="only print the tables of that file")
    return command_line.parsed(parser, argv, "four hosts for 20 s", hosts="4", seconds=20)


def _change(arguments: argparse.Namespace, host: Host, second: int) -> None:
    if second in arguments.slow:
        share = 0.5 if second == arguments.slow[0] else 1.0
        ring.change_host(host, share * arguments.flow_mbits * _STREAMS)


def _each_second(host: Host, seconds: int, change: Callable[[int], None]) -> list[float]:
    """MB/s that the host sends, in each second from now on. ``change`` gets the number of seconds after each."""
    rates, start = [], time.monotonic()
    before, then = ring.sent_bytes(host), start
    for number in range(1, seconds + 1):
        time.sleep(max(0.0, start + number - time.monotonic()))
        now, sent = time.monotonic(), ring.sent_bytes(host)
        rates.append((sent - before) / (now - then) / 1e6)
        before, then = sent, now
        change(number)
    return rates


def _read(arguments: argparse.Namespace, hosts: Sequence[Host], library: Path, streams: dict[str, str]) -> list[float]:
    specs = [
        in_turn.spec(number, arguments, library, float(arguments.seconds), nap_us=_NAP_US, coupled=True)
        for number in range(len(hosts))
    ]
    placements = [Placement(number, host, streams) for number, host in enumerate(hosts)]
    with running(in_turn.MODULE, placements) as ranks:
        in_turn.begin(ranks, specs)
        return _each_second(hosts[0], arguments.seconds, lambda second: _change(arguments, hosts[-1], second))


def _sides(arguments: argparse.Namespace, plugin: Path) -> dict[str, tuple[Path, dict[str, str]]]:
    """In this order: the second job of the same hosts begins with what the first one's paths have learned."""
    baseline = {"baseline": (arguments.baseline, {})} if arguments.baseline else {}
    jobs = {"bagua_net": (plugin, _REMEMBERS), "the second job": (plugin, _REMEMBERS)}
    return {report.REFERENCE: (plugin, _FROM_THE_START), **baseline, **jobs}


def _measure(arguments: argparse.Namespace, plugin: Path, output: Path, head: report.Reading) -> list[report.Reading]:
    readings: list[report.Reading] = []
    for count in map(int, arguments.hosts.split(",")):
        for pair in range(arguments.pairs):
            limits = (arguments.flow_mbits, arguments.flow_mbits * _STREAMS)
            with ring.hosts(count, *limits, machine.congestion_control()) as hosts:
                _MEMORY.unlink(missing_ok=True)  # of the same addresses in another ring
                for side, (library, streams) in _sides(arguments, plugin).items():
                    rates = [round(rate, 3) for rate in _read(arguments, hosts, library, streams)]
                    readings.append({"hosts": count, "pair": pair, "side": side, "mb_per_s": rates})
                    output.write_text(jsonl.text(head, readings))
                    print(report.line(readings[-1]), file=sys.stderr)
    return readings


def main(argv: Sequence[str]) -> int:
    arguments = _arguments(argv)
    if arguments.report:
        print(report.render(*jsonl.load(arguments.report)), end="")
        return 0
    plugin = arguments.plugin or bagua_net.plugin_path()
    output = command_line.output(arguments, "rings/DATE.jsonl")
    slow = {"slow": arguments.slow} if arguments.slow else {}
    limits = {**slow, "flow_mbits": arguments.flow_mbits, "host_mbits": arguments.flow_mbits * _STREAMS}
    head = about.this_run("rings", argv, streams=_STREAMS, size=arguments.size, inflight=arguments.inflight, **limits)
    namespaces.remove_stale()
    try:
        readings = _measure(arguments, plugin, output, head)
    except (RankFailed, namespaces.NetworkSetupError) as error:
        print(f"rings: {error}", file=sys.stderr)
        return 1
    output.with_suffix(".md").write_text(report.render(head, readings))
    return 0
