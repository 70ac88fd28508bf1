# SPDX-License-Identifier: MIT
"""How long and how often each scenario is measured, and the settings that each side may choose from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from benchmarks.run.scenarios import KIB, MIB, SCENARIOS, Cell, Scenario

#: (threads, sockets per thread) for "NCCL tuned", which allows 16 and 64; (0, 0): unset, (1, 1) outside some clouds.
GRID = ((0, 0), (2, 1), (1, 2), (2, 2), (1, 4), (2, 4), (1, 8), (2, 8), (4, 8), (4, 16))
QUICK_GRID = ((0, 0), (1, 4), (2, 8), (8, 4))
#: NCCL_SOCKET_SNDBUF in bytes for "NCCL tuned"; 0: unset, the kernel tunes the buffer. On a short path a small buffer
#: keeps the bytes in flight in the processor's cache, on a long one the kernel's own limit is too small.
NCCL_SNDBUF = (0, 128 * KIB, 512 * KIB)
QUICK_NCCL_SNDBUF = (0, 128 * KIB)
WAN_NCCL_SNDBUF = (0, MIB, 4 * MIB)
QUICK_WAN_NCCL_SNDBUF = (0, 4 * MIB)
#: (NCCL_SOCKET_INLINE, NCCL_SOCKET_MIN_TASKSIZE) in bytes, tried with the best of the settings above; 0: unset, which
#: is 128 B and 64 KiB. A message up to the first goes with its header in one call, through a copy; a message is cut for
#: the sockets of its connection into pieces of at least the second.
NCCL_CUTS = tuple((inline, task) for inline in (0, 64 * KIB) for task in (0, 16 * KIB, MIB) if inline or task)
QUICK_NCCL_CUTS = ((64 * KIB, 0),)
#: … over a long line, which needs many sockets, and where the line and not the cutting of messages is the limit.
WAN_GRID = ((0, 0), (1, 4), (4, 8), (4, 16))
#: … and where a reading takes many processes or much time: S6, S8 and S9.
SMALL_GRID = ((0, 0), (1, 2), (1, 4), (2, 4))
QUICK_SMALL_GRID = ((0, 0), (1, 4))
#: SO_SNDBUF in bytes for the raw sockets; 0: unset.
RAW_SNDBUF = (0, 64 * KIB, 128 * KIB, 256 * KIB)
QUICK_RAW_SNDBUF = (0, 128 * KIB)
#: Numbers of raw sockets that measure the limit of a long line: one alone is limited by the kernel's buffer for it.
RAW_SOCKETS = (2, 8, 32, 64)
#: (threads, sockets per thread, NCCL_SOCKET_SNDBUF) for "NCCL tuned" below NCCL's own collectives, where a block takes
#: too long for a screening: the best of a search over 0 to 4 threads, 1 to 16 sockets and buffers of 128 KiB to 4 MiB,
#: and one that is often the best of streams. Both are read in every pair.
COLLECTIVE_SETTINGS = ((0, 0, 256 * KIB), (1, 2, 128 * KIB))
CAPPED_COLLECTIVE_SETTINGS = ((1, 8, 0), (2, 8, 0))
QUICK_RAW_SOCKETS = (8, 32)


@dataclass(frozen=True)
class Effort:
    """Length of each reading in seconds, and the number of readings."""

    pairs: Mapping[str, int]
    """Readings of each side of a scenario."""
    warm_up_s: float
    window_s: float
    capped_warm_up_s: float
    """Flow classes and many processes: congestion control and stream counts settle slowly."""
    capped_window_s: float
    wan_warm_up_s: float
    """Long lines: a connection learns once per round trip, and cubic takes seconds to adapt to the losses."""
    wan_window_s: float
    shared_warm_up_s: float
    """Several pairs over one bottleneck: their trials of more streams are over after some seconds, or never."""
    shared_window_s: float
    rounds: int
    """Of a ping-pong of up to 16 KiB; fewer for larger messages."""
    grid: tuple[tuple[int, int], ...]
    wan_grid: tuple[tuple[int, int], ...]
    small_grid: tuple[tuple[int, int], ...]
    nccl_sndbuf: tuple[int, ...]
    wan_nccl_sndbuf: tuple[int, ...]
    nccl_cuts: tuple[tuple[int, int], ...]
    varied: int
    """The settings of the grid that are also tried with each of ``nccl_cuts``: the best."""
    finalists: int
    """Settings of a side that are read in every pair; the screening chooses them."""
    raw_sndbuf: tuple[int, ...]
    raw_sockets: tuple[int, ...]
    collective_settings: tuple[tuple[int, int, int], ...]
    capped_collective_settings: tuple[tuple[int, int, int], ...]
    """Through flow classes and over a long line."""
    collective_rounds: int
    """Of each size of a collective; the figure is their median."""
    collective_s: float
    """Approximate length of such a round; a single call may take longer."""
    idle_s: float

    def for_screening(self) -> Effort:
        """Shorter windows: the settings that are as good as the best are read again."""
        windows = ("capped_warm_up_s", "capped_window_s", "wan_warm_up_s", "wan_window_s")
        return replace(
            self,
            warm_up_s=self.warm_up_s / 2,
            window_s=self.window_s / 2,
            rounds=self.rounds // 4,
            **{name: getattr(self, name) / 4 for name in windows},
        )

    def pairs_for(self, scenario: Scenario) -> int:
        """Readings of each side."""
        return self.pairs[scenario.name]

    def with_few_settings(self) -> Effort:
        """The same readings with the settings of a quick run to choose from."""
        nccl = ("grid", "wan_grid", "small_grid", "nccl_sndbuf", "wan_nccl_sndbuf", "nccl_cuts", "varied", "finalists")
        return replace(self, **{name: getattr(QUICK, name) for name in (*nccl, "raw_sndbuf", "raw_sockets")})

    def screening_rounds(self, cell: Cell) -> int:
        """Readings of each setting in the screening: several seeds where a hash decides which classes a flow meets."""
        return 2 if cell.classes_mbits else 1

    def times_for(self, cell: Cell) -> tuple[float, float]:
        """(warm-up, window) of one reading of a stream."""
        if cell.work == "idle":
            return 0.0, self.idle_s
        if cell.path == "shared":
            return self.shared_warm_up_s, self.shared_window_s
        if cell.path == "wan":
            return self.wan_warm_up_s, self.wan_window_s
        if cell.rates_mbits or cell.ranks > 2:
            return self.capped_warm_up_s, self.capped_window_s
        return self.warm_up_s, self.window_s

    def rounds_for(self, size: int) -> int:
        """Round trips of one ping-pong reading."""
        return max(200, self.rounds * 16 * KIB // max(size, 16 * KIB))


FULL = Effort(
    pairs={scenario.name: scenario.pairs for scenario in SCENARIOS},
    warm_up_s=0.3,
    window_s=1.0,
    capped_warm_up_s=2.0,
    capped_window_s=3.0,
    wan_warm_up_s=3.0,
    wan_window_s=4.0,
    shared_warm_up_s=15.0,
    shared_window_s=15.0,
    rounds=10000,
    grid=GRID,
    wan_grid=WAN_GRID,
    small_grid=SMALL_GRID,
    nccl_sndbuf=NCCL_SNDBUF,
    wan_nccl_sndbuf=WAN_NCCL_SNDBUF,
    nccl_cuts=NCCL_CUTS,
    varied=2,
    finalists=2,
    raw_sndbuf=RAW_SNDBUF,
    raw_sockets=RAW_SOCKETS,
    collective_settings=COLLECTIVE_SETTINGS,
    capped_collective_settings=CAPPED_COLLECTIVE_SETTINGS,
    collective_rounds=5,
    collective_s=0.15,
    idle_s=4.0,
)
QUICK = Effort(
    pairs={scenario.name: 2 for scenario in SCENARIOS},
    warm_up_s=0.3,
    window_s=0.8,
    capped_warm_up_s=0.8,
    capped_window_s=1.5,
    wan_warm_up_s=1.5,
    wan_window_s=2.0,
    shared_warm_up_s=4.0,
    shared_window_s=8.0,
    rounds=6000,
    grid=QUICK_GRID,
    wan_grid=QUICK_GRID,
    small_grid=QUICK_SMALL_GRID,
    nccl_sndbuf=QUICK_NCCL_SNDBUF,
    wan_nccl_sndbuf=QUICK_WAN_NCCL_SNDBUF,
    nccl_cuts=QUICK_NCCL_CUTS,
    varied=1,
    finalists=2,
    raw_sndbuf=QUICK_RAW_SNDBUF,
    raw_sockets=QUICK_RAW_SOCKETS,
    collective_settings=COLLECTIVE_SETTINGS,
    capped_collective_settings=CAPPED_COLLECTIVE_SETTINGS,
    collective_rounds=3,
    collective_s=0.1,
    idle_s=1.5,
)
