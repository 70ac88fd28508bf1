# SPDX-License-Identifier: MIT
"""What is measured: the scenarios as rows of data. How long and how often is in :mod:`benchmarks.run.effort`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

KIB = 1024
MIB = 1024 * KIB


@dataclass(frozen=True)
class Scenario:
    """A heading of the report."""

    name: str
    title: str
    goal: str
    work: str
    """A key of :data:`WORKS`."""
    sides: tuple[str, ...] = ("raw", "nccl", "tuned", "baseline", "ours")
    """The sides that take part, in the order of the columns."""
    rival: str = "nccl"
    """The side that the picture divides by."""
    interleaved: bool = False
    """The sides take turns round by round within one reading, instead of reading by reading."""
    pairs: int = 5
    """Readings of each side in a full run: fewer where one takes long."""
    few_settings: bool = False
    """"tuned" is chosen from few settings, since each reading takes many processes or much time."""


@dataclass(frozen=True)
class Work:
    """A kind of load, and its figure."""

    unit: str
    less: bool
    """Less is better."""


WORKS = {
    "stream": Work("GB/s per direction and rank", less=False),
    "pingpong": Work("µs, less is better", less=True),
    "collective": Work("GB/s of bus bandwidth, or µs up to 64 KiB", less=False),
    "cost": Work("processor seconds per GB received, less is better", less=True),
    "idle": Work("wake-ups per second, less is better", less=True),
    "connections": Work("ms until all are made, less is better", less=True),
}

#: NCCL itself runs in this scenario, whatever the side, and each rank is bound to its share of the processors.
WHOLE_NCCL = "S12"

SCENARIOS = (
    Scenario(
        "S1",
        "no caps",
        "veth at least 2.3 × the better NCCL, loopback at least 1.7 × and at least 95 % of raw sockets from 512 KiB "
        "on; nowhere below 1.2 ×",
        "stream",
    ),
    Scenario("S2", "eight equal flow classes", "at least 95 % of the capacity of the classes", "stream"),
    Scenario(
        "S3",
        "unequal flow classes",
        "at least 90 % of the capacity of the classes, at least 5 × NCCL's default",
        "stream",
    ),
    Scenario(
        "S4",
        "a long line, with losses",
        "at least 90 % of the limit without loss or with bbr, nowhere below the better NCCL; with cubic at 20 ms and "
        "0.1 % at least 2 × the better NCCL and 20 × its default",
        "stream",
        pairs=3,
    ),
    Scenario(
        "S5",
        "ping-pong, half round trip",
        "at most NCCL's latency plus the spread at every size, at most 0.85 × at 512 KiB",
        "pingpong",
    ),
    Scenario(
        "S6",
        "16 ranks, each with each",
        "at most 4 threads per process; with 8 connections per peer at least 0.8 × the rate of one",
        "stream",
        ("nccl", "tuned", "baseline", "ours"),
        pairs=3,
        few_settings=True,
    ),
    Scenario(
        "S7",
        "allreduce",
        "never slower than NCCL's transport or gloo, at any size",
        "collective",
        ("nccl", "tuned", "gloo", "baseline", "ours"),
        pairs=3,
    ),
    Scenario(
        "S8",
        "two network cards, one four times slower",
        "the sum of both",
        "stream",
        ("nccl", "tuned", "baseline", "ours"),
        pairs=3,
        few_settings=True,
    ),
    Scenario(
        "S9",
        "processor time at a given rate",
        "at most NCCL's",
        "cost",
        ("nccl", "tuned", "baseline", "ours"),
        pairs=3,
        few_settings=True,
    ),
    Scenario("idle", "connections that carry nothing", "at most NCCL's", "idle", ("nccl", "baseline", "ours")),
    Scenario(
        "S10",
        "several pairs over one bottleneck",
        "at most two streams of a connection at the end; at least 97 % of what one stream for each connection carries, "
        "and at most twice its drops; through flow classes at least 85 % of the capacity",
        "stream",
        ("one stream", "baseline", "ours"),
        "one stream",
        pairs=2,
    ),
    Scenario(
        "S11",
        "making and having connections",
        "at most 2 × NCCL's time, 4,096 in under 2 s, no call that waits for more than 5 ms; the transport's own "
        "threads take nothing while all are idle and at most 3 % of a processor while 2,048 streams of a process move",
        "connections",
        ("nccl", "baseline", "ours"),
    ),
    Scenario(
        WHOLE_NCCL,
        "collectives of NCCL itself, on emulated GPUs",
        "eight equal flow classes: at least 80 % of their capacity from 16 MiB on and 50 % at 4 MiB; without caps "
        "nowhere slower than NCCL's own sockets, with their default or their best settings",
        "collective",
        ("nccl", "tuned", "baseline", "ours"),
        pairs=3,
    ),
    Scenario(
        "torch",
        "allreduce through torch.distributed",
        "at least 3 × gloo up to 64 KiB and under flow caps, at least 1.5 × from 1 MiB on, nowhere slower",
        "collective",
        ("gloo", "ours"),
        "gloo",
        interleaved=True,
    ),
)
#: The scenario of the measurement torch-allreduce. All others are of transport.
TORCH = "torch"
#: Of the measurement gpu.
GPU = Scenario(
    "GPU", "allreduce of NCCL", "never slower than over NCCL's own sockets, at any size", "collective", ("nccl", "ours")
)


#: "cables": one veth for each of ``Cell.cables_mbits``. "shared": one bottleneck for ``Cell.pairs`` pairs of ranks.
PATHS = ("loopback", "veth", "cables", "wan", "shared")


@dataclass(frozen=True)
class Cell:
    """One row of the report: a network and a load."""

    scenario: str
    path: str
    """One of :data:`PATHS`."""
    connections: int
    """To each peer and from it; 0 for collectives, which choose their own."""
    size: int
    """Bytes of a message."""
    classes_mbits: tuple[int, ...] = ()
    """Rates of the flow classes of each direction; empty: no caps."""
    round_trip_ms: float = 0.0
    """Of a "wan"."""
    loss_percent: float = 0.0
    """Of the packets of a "wan", in each direction."""
    congestion: str = ""
    """TCP congestion control; empty: that of the whole run."""
    ranks: int = 2
    """The first half on one host, the second half on the other."""
    cables_mbits: tuple[int, ...] = ()
    """Rates of the "cables", in each direction."""
    nap_us: int = 0
    """The driver's sleep after a pass that moved nothing; 0: it yields, as NCCL's thread does."""
    interfaces: int = 0
    """Further interfaces of each host, which carry nothing."""
    together: int = 0
    """Connections that are made at a time; 0: all at once."""
    pairs: int = 1
    """Pairs of ranks of a "shared" network."""
    place: str = "sender"
    """Whose link is shared: a key of :data:`benchmarks.networks.shared.PLACES`."""
    fair: bool = False
    """The shared link has a queue for each flow."""
    shared_mbits: int = 0
    """The rate of the shared link."""
    op: str = "allreduce"
    """Of a collective: a name of ``bagua_net._bench.workload.ops.OPS``."""

    @property
    def heading(self) -> Scenario:
        """The scenario of this cell."""
        return next(scenario for scenario in (*SCENARIOS, GPU) if scenario.name == self.scenario)

    @property
    def work(self) -> str:
        """The scenario's kind of load."""
        return self.heading.work

    @property
    def network(self) -> str:
        """The path in words: "veth, 6 × 1000 + 2 × 250 Mbit/s", "wan, 20 ms, 0.1 % loss, cubic"."""
        if self.path == "wan":
            return f"wan, {self.round_trip_ms:g} ms, {self.loss_percent:g} % loss, {self.congestion}"
        if self.path == "cables":
            return f"veths of {' and '.join(map(str, self.cables_mbits))} Mbit/s"
        if self.path == "shared":
            return self._shared_network
        if self.interfaces:
            return f"{self.path}, {self.interfaces} further interfaces"
        if self.together:
            return f"{self.path}, made {self.together} at a time"
        return f"{self.path}, {self._classes} Mbit/s" if self.classes_mbits else self.path

    @property
    def _classes(self) -> str:
        rates = sorted(set(self.classes_mbits), reverse=True)
        if len(rates) == len(self.classes_mbits):
            return ", ".join(map(str, rates))
        return " + ".join(f"{self.classes_mbits.count(rate)} × {rate}" for rate in rates)

    @property
    def _shared_network(self) -> str:
        queues = "a queue for each flow" if self.fair else "one queue"
        classes = f", classes of {self._classes} Mbit/s" if self.classes_mbits else f", {queues}"
        return f"{self.pairs} pairs over {self.shared_mbits} Mbit/s at the {self.place}{classes}, {self.congestion}"

    @property
    def rates_mbits(self) -> tuple[int, ...]:
        """Rates of the limits of each direction; empty: no caps."""
        if self.shared_mbits:
            return (min(self.shared_mbits, sum(self.classes_mbits) or self.shared_mbits),)
        return self.classes_mbits or self.cables_mbits

    @property
    def full_cable(self) -> float:
        """The bus bandwidth of a collective that fills the cable between the hosts, per byte/s of the cable. A ring
        crosses it once; in an all-to-all every rank sends half of its blocks across."""
        return 4 * (self.ranks - 1) / self.ranks**2 if self.op == "all_to_all" else 1.0

    @property
    def _suffix(self) -> str:
        """Distinguishes cells of the same network, connections and size."""
        ranks = f" | {self.ranks} ranks" if self.ranks != 2 else ""
        op = f" | {self.op}" if self.op != "allreduce" else ""
        return ranks + op + (f" | nap {self.nap_us} µs" if self.nap_us else "")

    @property
    def key(self) -> str:
        """The cell's name in a results file."""
        return f"{self.scenario} | {self.network} | {self.connections} | {self.size}{self._suffix}"

    @property
    def block(self) -> str:
        """Cells of one block are read one after the other in the same processes: the sizes of a collective."""
        return f"{self.scenario} | {self.network}{self._suffix}" if self.work == "collective" else self.key


_EQUAL = (1000,) * 8
_TWO_SLOW = (1000,) * 6 + (250,) * 2
_ALL_DIFFERENT = (900, 800, 700, 600, 400, 200, 100, 50)

_STREAM_SIZES = tuple(64 * KIB << step for step in range(0, 7, 2))
_PINGPONG_SIZES = (4, 64, KIB, 4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, 512 * KIB, MIB)
_COLLECTIVE_SIZES = tuple(KIB << step for step in range(0, 19, 2))
_QUICK_COLLECTIVE_SIZES = (4 * KIB, 256 * KIB, 16 * MIB)
#: Long compared with a pass over the connections, short compared with the time to fill a socket's buffer at 2 Gbit/s.
_NAP_US = 50


def _uncapped(quick: bool) -> Iterator[Cell]:
    for path in ("loopback", "veth"):
        for connections in (2,) if quick else (1, 2):
            for size in (MIB,) if quick else _STREAM_SIZES:
                yield Cell("S1", path, connections, size)


def _unequal(quick: bool) -> Iterator[Cell]:
    for classes in (_ALL_DIFFERENT,) if quick else (_TWO_SLOW, _ALL_DIFFERENT):
        yield Cell("S3", "veth", 2, MIB, classes)


#: (round trip in ms, loss in percent, congestion control): each value at least once, most of them near the goal's.
_LONG_LINES = (
    (1, 0, "bbr"),
    (5, 0, "cubic"),
    (20, 0, "bbr"),
    (5, 0.1, "bbr"),
    (20, 0.1, "bbr"),
    (40, 1, "bbr"),
    (20, 0.01, "cubic"),
    (20, 0.1, "cubic"),
    (20, 1, "cubic"),
    (40, 0.1, "cubic"),
)
_QUICK_LONG_LINES = ((20, 0.1, "cubic"),)


def _long_lines(quick: bool) -> Iterator[Cell]:
    for round_trip_ms, loss_percent, congestion in _QUICK_LONG_LINES if quick else _LONG_LINES:
        yield Cell("S4", "wan", 2, MIB, (), round_trip_ms, loss_percent, congestion)


def _pingpong(quick: bool) -> Iterator[Cell]:
    for path in ("loopback",) if quick else ("loopback", "veth"):
        for size in (4, 512 * KIB) if quick else _PINGPONG_SIZES:
            yield Cell("S5", path, 1, size)


def _each_with_each(quick: bool) -> Iterator[Cell]:
    for path in ("loopback",) if quick else ("loopback", "veth"):
        for connections in (1, 8):
            yield Cell("S6", path, connections, 64 * KIB, ranks=16)


# The networks of collectives, as incomplete cells.
_LOOPBACK = Cell("", "loopback", 0, 0)
_CABLE = Cell("", "veth", 0, 0)
_CAPPED = replace(_CABLE, classes_mbits=_EQUAL)
_UNEQUAL = tuple(replace(_CABLE, classes_mbits=classes) for classes in (_TWO_SLOW, _ALL_DIFFERENT))
_LONG_LINE = Cell("", "wan", 0, 0, (), 20, 0.1, "bbr")
_NETWORKS = (_LOOPBACK, _CABLE, _CAPPED, *_UNEQUAL, _LONG_LINE)


def _collective(scenario: str, quick: bool, networks: Sequence[Cell], ranks: Sequence[int]) -> Iterator[Cell]:
    """Every size on each of these networks between these numbers of ranks."""
    for network in networks:
        for number in ranks:
            for size in _QUICK_COLLECTIVE_SIZES if quick else _COLLECTIVE_SIZES:
                yield replace(network, scenario=scenario, ranks=number, size=size)


def _allreduce(scenario: str, quick: bool, *quick_networks: Cell) -> Iterator[Cell]:
    """``quick_networks``: those of a quick run."""
    return _collective(scenario, quick, quick_networks if quick else _NETWORKS, (2,) if quick else (2, 4))


#: Two processors can fill the sum of these classes: here the network is the limit of NCCL's collectives.
_SLOWER_CAPPED = tuple(replace(_CABLE, classes_mbits=(rate,) * 8) for rate in (500, 250))
#: Of NCCL's own collectives where some flows get 50 Mbit/s: its sockets would need a minute for a call of 256 MiB.
_LARGEST_BESIDE_SLOW_FLOWS = 16 * MIB


def _collectives_of_nccl(quick: bool) -> Iterator[Cell]:
    for cell in _allreduce(WHOLE_NCCL, quick, _CABLE, _CAPPED):
        if cell.classes_mbits != _ALL_DIFFERENT or cell.size <= _LARGEST_BESIDE_SLOW_FLOWS:
            yield cell
    if not quick:
        yield from _collective(WHOLE_NCCL, quick, (_LOOPBACK, _CABLE), (8,))
        yield from _collective(WHOLE_NCCL, quick, _SLOWER_CAPPED, (2, 4))
    # Every rank has a connection to each other one. Networks on which that is another load than a ring.
    networks = (_CABLE, _CAPPED) if quick else (_CABLE, _CAPPED, _SLOWER_CAPPED[0], _UNEQUAL[0])
    for cell in _collective(WHOLE_NCCL, quick, networks, (2,) if quick else (4,)):
        yield replace(cell, op="all_to_all")
    if not quick:
        for cell in _collective(WHOLE_NCCL, quick, (_CABLE,), (8,)):
            yield replace(cell, op="all_to_all")


_SHARED = Cell("S10", "shared", 1, MIB, congestion="cubic", shared_mbits=400)


def _bottlenecks(quick: bool) -> Iterator[Cell]:
    for place in ("sender",) if quick else ("sender", "receiver"):
        for fair in (False,) if quick else (False, True):
            for pairs in (4,) if quick else (1, 2, 4, 8):
                yield replace(_SHARED, pairs=pairs, place=place, fair=fair)
        # The classes are the limit, and half of their sum is.
        for mbit in (800,) if quick else (800, 400):
            yield replace(_SHARED, pairs=4, place=place, classes_mbits=(100,) * 8, shared_mbits=mbit)


def _many(quick: bool) -> Iterator[Cell]:
    for connections in (32, 600) if quick else (32, 128, 600, 2048):
        yield Cell("S11", "loopback", connections, KIB)
    yield Cell("S11", "loopback", 600, KIB, together=1)
    # An address of the loopback interface is known to be local; any other one is looked for.
    for interfaces in () if quick else (0, 500):
        yield Cell("S11", "veth", 600, KIB, interfaces=interfaces)


def _costs(quick: bool) -> Iterator[Cell]:
    for rate in (1000,) if quick else (1000, 2000):
        for nap_us in (_NAP_US,) if quick else (0, _NAP_US):
            yield Cell("S9", "veth", 2, MIB, (rate,), nap_us=nap_us)


def _idle(quick: bool) -> Iterator[Cell]:
    for path in ("veth",) if quick else ("loopback", "veth"):
        yield Cell("idle", path, 2, MIB)


def cells(quick: bool) -> list[Cell]:
    """Every row, in the order of the report."""
    return [
        *_uncapped(quick),
        Cell("S2", "veth", 2, MIB, _EQUAL),
        *_unequal(quick),
        *_long_lines(quick),
        *_pingpong(quick),
        *_each_with_each(quick),
        *_allreduce("S7", quick, _CABLE),
        Cell("S8", "cables", 2, MIB, cables_mbits=(1000, 250)),
        *_costs(quick),
        *_idle(quick),
        *_bottlenecks(quick),
        *_many(quick),
        *_collectives_of_nccl(quick),
        *_allreduce(TORCH, quick, _LOOPBACK, _CAPPED, _LONG_LINE),
    ]


def torch_goal(cell: Cell) -> float:
    """The goal of an allreduce through torch.distributed, as a multiple of gloo's speed."""
    if cell.rates_mbits or cell.size <= 64 * KIB:
        return 3.0
    return 1.5 if cell.size >= MIB else 1.0
