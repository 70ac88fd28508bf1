# SPDX-License-Identifier: MIT
"""The command: networks, ranks, the file of readings."""

from __future__ import annotations

import argparse
import os
import secrets
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import bagua_net
from bagua_net import _sizes
from bagua_net._bench.workload.config import Config
from bagua_net._bench.workload.result import Row
from benchmarks import command_line
from benchmarks.codecs import report, speed
from benchmarks.loads.collective import CollectiveSpec, collective_rows
from benchmarks.loads.collective_rank import CollectiveRankSpec
from benchmarks.loads.processes import RankFailed
from benchmarks.networks import namespaces
from benchmarks.report import about, machine

_SIDES = (report.PLAIN, *report.COMPRESSED)
_SMALLEST, _LARGEST, _FACTOR = 64 << 10, 256 << 20, 4
#: Seconds of a round of calls, and until a rank gives up on the others: checking 256 MiB of codes takes long.
_ROUND_S, _TIMEOUT_S = 0.3, 600.0
#: The library computes on one thread. torch's idle threads would take the processors from all sides.
_ONE_THREAD = {"OMP_NUM_THREADS": "1"}
#: GB/s of bus bandwidth, below that of any network here.
_SLOWEST = 0.02


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = command_line.parser("codecs", __doc__)
    parser.set_defaults(argv=argv)
    sizes = ",".join(map(_sizes.show, _sizes.sweep(_SMALLEST, _LARGEST, _FACTOR))).replace(" ", "").replace("iB", "")
    parser.add_argument("--rounds", type=int, default=7, help="turns of each side at each size: %(default)s")
    parser.add_argument("--ranks", default="2", help="half of them on each host; such as 2,4: %(default)s")
    parser.add_argument(
        "--networks", default="loopback,1000,10000", help="loopback, or Mbit/s of a cable: %(default)s; 0: no cap"
    )
    parser.add_argument("--sizes", default=sizes, help="%(default)s")
    parser.add_argument("--output", type=Path, help="the file of readings: results/codecs/DATE.jsonl")
    parser.add_argument("--report", type=Path, metavar="FILE", help="only print the tables of that file")
    return command_line.parsed(parser, argv, "three sizes and turns: two minutes", rounds=3, sizes="64K,4M,64M")


@contextmanager
def _network(name: str) -> Iterator[namespaces.Hosts]:
    """Loopback, or a cable. A cap is one flow class of each end for all flows."""
    congestion = machine.congestion_control()
    if name == "loopback":
        with namespaces.loopback(congestion) as hosts:
            yield hosts
        return
    with namespaces.veth(congestion) as hosts:
        if int(name):
            namespaces.shape(hosts, (int(name),))
            namespaces.hash_flows(hosts, 1, 0)
        yield hosts


def _place(network: str, ranks: int) -> str:
    named = {"loopback": "loopback", "0": "a cable without a cap"}
    return f"{ranks} ranks, {named.get(network, f'a cable of {network} Mbit/s')}"


def _spec(side: str, ranks: int, sizes: tuple[int, ...], rounds: int) -> CollectiveSpec:
    """rank, address, transports and token are filled in for each rank."""
    rank = CollectiveRankSpec(
        rank=0,
        ranks=ranks,
        op="allreduce",
        device="cpu",
        nccl="",
        transport=side,
        transports=(),
        library=str(bagua_net.plugin_path()),
        address="",
        token=secrets.token_hex(16),
        sizes=sizes,
        rounds=rounds,
        seconds=_ROUND_S,
        timeout_s=_TIMEOUT_S,
        redop="avg",
    )
    return CollectiveSpec(rank, _SLOWEST)


def _readings(place: str, rows: Sequence[Row]) -> Iterator[report.Reading]:
    """One for each size.

    Raises:
        RankFailed: a result was wrong.
    """
    for size in dict.fromkeys(row.size for row in rows):
        here = {row.transport: row for row in rows if row.size == size}
        wrong = sum(row.wrong for row in here.values())
        if wrong:
            raise RankFailed(f"{place}, {_sizes.show(size)}: {wrong} elements are wrong")
        yield {
            "place": place,
            "bytes": size,
            "us": {name: [1e6 * value for value in row.rounds] for name, row in here.items()},
            "processor_us": {name: [1e6 * value for value in row.used] for name, row in here.items()},
        }


def _read(arguments: argparse.Namespace, output: Path) -> None:
    sizes = tuple(_sizes.parse(text) for text in arguments.sizes.split(","))
    head = about.this_run(
        "codecs",
        arguments.argv,
        congestion_control=machine.congestion_control(),
        rounds=arguments.rounds,
        block=Config(nranks=2).block,
    )
    readings: list[report.Reading] = []
    codecs = report.rounded(speed.measure(head["settings"]["block"], arguments.rounds))
    for network in arguments.networks.split(","):
        with _network(network) as hosts:
            for ranks in map(int, arguments.ranks.split(",")):
                parts = [(_spec(side, ranks, sizes, arguments.rounds), _ONE_THREAD) for side in _SIDES]
                place = _place(network, ranks)
                readings += report.rounded(list(_readings(place, collective_rows(parts, hosts))))
                output.write_text(report.lines(head, codecs, readings))
                print(f"{place}: read", file=sys.stderr)
    output.with_suffix(".md").write_text(report.render(head, codecs, readings))


def main(argv: Sequence[str]) -> int:
    arguments = _arguments(argv)
    if arguments.report:
        print(report.render(*report.load(arguments.report)), end="")
        return 0
    if os.geteuid() != 0:
        print("codecs: network namespaces need root: sudo python3 -m benchmarks codecs …", file=sys.stderr)
        return 2
    output = command_line.output(arguments, "codecs/DATE.jsonl")
    namespaces.remove_stale()
    try:
        _read(arguments, output)
    except (RankFailed, namespaces.NetworkSetupError) as error:
        print(f"codecs: {error}", file=sys.stderr)
        return 1
    print(output.with_suffix(".md").read_text(), end="")
    return 0
