# SPDX-License-Identifier: MIT
"""The command: two hosts whose connections have some streams that a firewall resets, one of them or all at once."""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import bagua_net
from benchmarks import ROOT, command_line
from benchmarks.loads import in_turn
from benchmarks.loads.processes import Placement, RankFailed, running
from benchmarks.networks import namespaces, ring
from benchmarks.networks.namespaces import Host
from benchmarks.repairs import report
from benchmarks.report import about, jsonl, machine

#: Streams and how many of them are reset at a time.
_CELLS = ((8, 1), (8, 8), (1, 1))
#: Bytes sent on a stream, by which those that carry data are told from those on which they come.
_MUCH = 500_000
_PAUSE_S = report.BEFORE_S + report.AFTER_S + 0.5


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = command_line.parser("repairs", __doc__)
    parser.add_argument("--times", type=int, default=10, help="that streams are reset, of each kind: %(default)s")
    parser.add_argument("--flow-mbits", type=float, default=100.0, help="of a flow at the most: %(default)s")
    parser.add_argument("--size", type=int, default=1 << 20, help="bytes of a message: %(default)s")
    parser.add_argument("--inflight", type=int, default=8, help="messages that are under way: %(default)s")
    parser.add_argument("--build", type=Path, default=ROOT / "build-bench", help="the build folder of benchmarks/")
    parser.add_argument("--plugin", type=Path, help="the plugin: that of the installed package")
    parser.add_argument("--output", type=Path, help="the file of readings: results/repairs/DATE.jsonl")
    parser.add_argument("--report", type=Path, metavar="FILE", help="only print the table of that file")
    return command_line.parsed(parser, argv, "each kind twice", times=2)


@contextmanager
def _sampled(host: Host) -> Iterator[list[tuple[float, int]]]:
    """(seconds, bytes sent), which grows while the block runs."""
    samples: list[tuple[float, int]] = []
    command = [
        "ip",
        "netns",
        "exec",
        host.namespace,
        sys.executable,
        "-m",
        "benchmarks.repairs.sampler",
        host.interface,
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout
        out = process.stdout

        def read() -> None:
            for line in out:
                at, sent = line.split()
                samples.append((float(at), int(sent)))

        thread = threading.Thread(target=read)
        thread.start()
        try:
            yield samples
        finally:
            process.kill()
            thread.join()


def _ports(sender: Host, receiver: Host) -> set[int]:
    """The first host's, of the streams on which it sends."""
    command = ["ip", "netns", "exec", sender.namespace, "ss", "-tniHO", "state", "established", "dst", receiver.address]
    streams = re.findall(r":(\d+) +\S+:\d+ .*?bytes_sent:(\d+)", namespaces.run(command))
    return {int(port) for port, sent in streams if int(sent) > _MUCH}


def _reset(sender: Host, receiver: Host, count: int) -> float:
    """When streams were reset: the receiver's host answers their next packet so."""
    ports = sorted(_ports(sender, receiver))[:count]
    if len(ports) < count:
        raise RankFailed(f"{len(ports)} streams move data, not {count}")
    listed = ", ".join(map(str, ports))
    rule = f"tcp sport {{ {listed} }} reject with tcp reset"
    script = f"table inet cut {{\nchain in {{\ntype filter hook input priority 0\n{rule}\n}}\n}}\n"
    at = time.monotonic()
    namespaces.run(["ip", "netns", "exec", receiver.namespace, "nft", "-f", "-"], script)
    while _ports(sender, receiver).intersection(ports):
        time.sleep(0.005)
    namespaces.run(["ip", "netns", "exec", receiver.namespace, "nft", "delete", "table", "inet", "cut"])
    return at


def _cell(arguments: argparse.Namespace, plugin: Path, streams: int, reset: int) -> list[report.Reading]:
    limits = (arguments.flow_mbits, arguments.flow_mbits * streams)
    settings = {"BAGUA_NET_MIN_NSTREAMS": str(streams), "BAGUA_NET_NSTREAMS": str(streams)}
    seconds = 4.0 + arguments.times * _PAUSE_S
    with ring.hosts(2, *limits, machine.congestion_control()) as hosts:
        specs = [in_turn.spec(number, arguments, plugin, seconds) for number in range(2)]
        placements = [Placement(number, host, settings) for number, host in enumerate(hosts)]
        with running(in_turn.MODULE, placements) as ranks:
            in_turn.begin(ranks, specs)
            with _sampled(hosts[0]) as samples:
                time.sleep(3.0)
                times = []
                for _ in range(arguments.times):
                    times.append(_reset(hosts[0], hosts[1], reset))
                    time.sleep(_PAUSE_S)
    rates = [report.bins(samples, at) for at in times]
    return [{"streams": streams, "reset": reset, "mb_per_s": each} for each in rates]


def main(argv: Sequence[str]) -> int:
    arguments = _arguments(argv)
    if arguments.report:
        print(report.render(*jsonl.load(arguments.report)), end="")
        return 0
    plugin = arguments.plugin or bagua_net.plugin_path()
    output = command_line.output(arguments, "repairs/DATE.jsonl")
    settings = {"size": arguments.size, "inflight": arguments.inflight, "flow_mbits": arguments.flow_mbits}
    head = about.this_run("repairs", argv, **settings)
    namespaces.remove_stale()
    readings: list[report.Reading] = []
    try:
        for streams, reset in _CELLS:
            readings += _cell(arguments, plugin, streams, reset)
            for each in readings[-arguments.times :]:
                print(report.line(each), file=sys.stderr)
    except (RankFailed, namespaces.NetworkSetupError) as error:
        print(f"repairs: {error}", file=sys.stderr)
        return 1
    output.write_text(jsonl.text(head, readings))
    output.with_suffix(".md").write_text(report.render(head, readings))
    return 0
