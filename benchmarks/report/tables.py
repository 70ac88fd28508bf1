# SPDX-License-Identifier: MIT
"""The table of each scenario: its columns, and a row for each cell."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.report.figures import (
    NOTHING,
    better_nccl,
    detail,
    marked,
    number,
    ratio,
    ratio_of,
    ratio_text,
    size,
    span,
    spread,
    whole,
)
from benchmarks.report.results import CellRecord
from benchmarks.run.scenarios import KIB, TORCH, WHOLE_NCCL, torch_goal

Records = Sequence[CellRecord]

#: Collectives up to this size are shown as times.
_SMALL = 64 * KIB


@dataclass(frozen=True)
class Table:
    """Of one scenario."""

    columns: tuple[str, ...]
    row: Callable[[CellRecord, Records], list[str]]
    """(a cell, all cells of its scenario) → its row."""


def _share(record: CellRecord, limit: float | None) -> str:
    own = record.values("ours")
    if limit is not None and own:
        return f"{median(own.values()) / limit:.0%}"
    share = ratio(record, "ours", "raw")
    return NOTHING if share is None else f"{share:.0%}"


def _both_nccl(record: CellRecord, show: Callable[[CellRecord, str], str] = spread) -> list[str]:
    """NCCL without and with settings, and the plugin beside both."""
    both = record.values("nccl") and record.values("tuned")
    better = ratio_text(record, better_nccl(record)) if both else NOTHING
    rivals = [show(record, "nccl"), show(record, "tuned"), record.setting("tuned") or NOTHING]
    return [*rivals, show(record, "ours"), ratio_text(record, "nccl"), better]


def _stream(record: CellRecord, among: Records) -> list[str]:
    cell = record.cell
    capacity = NOTHING if record.limit is None else number(record.limit)
    load = [cell.network, str(cell.connections), size(cell.size), capacity]
    return [*load, spread(record, "raw"), *_both_nccl(record), _share(record, record.limit)]


def _pingpong(record: CellRecord, among: Records) -> list[str]:
    return [record.cell.network, size(record.cell.size), spread(record, "raw"), *_both_nccl(record)]


# ---- S6 ----


def _of_one_per_peer(record: CellRecord, among: Records) -> str:
    """The plugin's rate over its rate with one connection per peer: a ratio of medians, since the pairs differ."""
    own = record.values("ours")
    for other in among:
        same = (other.cell.network, other.cell.ranks) == (record.cell.network, record.cell.ranks)
        one = other.values("ours")
        if same and other.cell.connections == 1 and own and one and other is not record:
            return f"{median(own.values()) / median(one.values()):.2f}"
    return NOTHING


def _resources(record: CellRecord, side: str) -> str:
    return " / ".join(whole(record, side, name) for name in ("threads", "descriptors", "memory_mib"))


def _each_with_each(record: CellRecord, among: Records) -> list[str]:
    cell = record.cell
    load = [cell.network, str(cell.ranks), str(cell.connections), str(2 * (cell.ranks - 1) * cell.connections)]
    return [
        *load,
        *_both_nccl(record),
        _of_one_per_peer(record, among),
        _resources(record, "nccl"),
        _resources(record, "ours"),
    ]


# ---- S7 and GPU ----


def _collective(record: CellRecord, side: str) -> str:
    if record.cell.size > _SMALL or not record.values(side):
        return spread(record, side)
    return f"{span(record.details(side, 'us'))} µs"


def _allreduce(record: CellRecord, among: Records) -> list[str]:
    cell = record.cell
    gloo = [_collective(record, "gloo"), ratio_text(record, "gloo")]
    return [cell.network, str(cell.ranks), size(cell.size), *_both_nccl(record, _collective), *gloo]


# ---- S12 ----


def _by_nccl(record: CellRecord, among: Records) -> list[str]:
    cell = record.cell
    share = NOTHING if record.limit is None else _share(record, record.limit * cell.full_cable)
    return [cell.op, cell.network, str(cell.ranks), size(cell.size), *_both_nccl(record, _collective), share]


# ---- torch ----


def _goal(record: CellRecord) -> str:
    goal, found = torch_goal(record.cell), ratio(record, "ours", "gloo")
    return f"{goal:g}" + (", missed" if found is not None and round(found, 2) < goal else "")


def _through_torch(record: CellRecord, among: Records) -> list[str]:
    cell = record.cell
    figures = [_collective(record, side) for side in ("gloo", "ours")]
    costs = [record.details(side, "processor_us") for side in ("gloo", "ours")]
    load = [cell.network, str(cell.ranks), size(cell.size)]
    more = ratio_of(costs[1], costs[0])
    times = NOTHING if more is None else marked(f"{more:.2f}", more > 1)
    return [*load, *figures, ratio_text(record, "gloo"), _goal(record), *map(span, costs), times]


# ---- GPU ----


def _of_nccl(record: CellRecord, among: Records) -> list[str]:
    cell = record.cell
    figures = [_collective(record, side) for side in ("nccl", "ours")]
    return [cell.network, str(cell.ranks), size(cell.size), *figures, ratio_text(record, "nccl")]


# ---- S8 ----


def _cards(record: CellRecord, among: Records) -> list[str]:
    devices = record.details("ours", "devices").values()
    alone = " (one card: it cannot join them)" if devices and max(devices) > 1 else ""
    nccl, tuned, setting, own, *ratios = _both_nccl(record)
    equal = [detail(record, side, "equal_share") for side in ("nccl", "ours")]
    rates = [nccl, equal[0], tuned, setting, own + alone, equal[1]]
    figures = [*rates, *ratios, _equal_ratio(record), _share(record, record.limit)]
    limit = NOTHING if record.limit is None else number(record.limit)
    return [record.cell.network, str(record.cell.connections), size(record.cell.size), limit, *figures]


def _equal_ratio(record: CellRecord) -> str:
    found = ratio_of(record.details("ours", "equal_share"), record.details("nccl", "equal_share"))
    return NOTHING if found is None else marked(f"{found:.2f}", found < 1)


# ---- S9 and idle ----


def _cost(record: CellRecord, among: Records) -> list[str]:
    cell = record.cell
    driver = f"sleeps {cell.nap_us} µs" if cell.nap_us else "yields"
    figures = []
    for name in ("rate", "everything", "softirq"):
        figures += [detail(record, side, name) for side in ("nccl", "ours")]
    return [cell.network, driver, *_both_nccl(record), *figures]


def _idle(record: CellRecord, among: Records) -> list[str]:
    theirs, own = record.values("nccl"), record.values("ours")
    lost = bool(theirs and own) and median(own.values()) > median(theirs.values())
    figures = [spread(record, "nccl"), marked(spread(record, "ours"), lost)]
    for name in ("cpu_ms_per_s", "threads"):
        show = whole if name == "threads" else detail
        figures += [show(record, side, name) for side in ("nccl", "ours")]
    return [record.cell.network, str(record.cell.connections), *figures]


# ---- S10 ----


def _pairs(record: CellRecord, among: Records) -> list[str]:
    rates = [spread(record, "one stream"), spread(record, "ours"), ratio_text(record, "one stream")]
    figures = []
    for name in ("dropped", "streams", "most_streams"):
        figures += [detail(record, side, name) for side in ("one stream", "ours")]
    slowest = [detail(record, side, "slowest") for side in ("one stream", "ours")]
    return [record.cell.network, *rates, _share(record, record.limit), *figures, *slowest]


# ---- S11 ----


def _many(record: CellRecord, among: Records) -> list[str]:
    cell = record.cell
    figures = [spread(record, "nccl"), spread(record, "ours"), ratio_text(record, "nccl")]
    for name in ("longest_ms", "longest_wait_ms"):
        figures += [detail(record, side, name) for side in ("nccl", "ours")]
    held = [
        " / ".join(detail(record, side, name) for name in ("memory_kib", "descriptors")) for side in ("nccl", "ours")
    ]
    own = [detail(record, "ours", name) for name in ("idle_percent", "moving_percent")]
    messages = [detail(record, side, "received_mb_per_s") for side in ("nccl", "ours")]
    ends = [detail(record, side, "close_ms") for side in ("nccl", "ours")]
    figures.append(detail(record, "ours", "lock_wait_ms"))
    return [cell.network, str(2 * cell.connections), *figures, *held, *own, *messages, *ends]


_RATIOS = ("NCCL tuned", "its setting", "bagua_net", "× default", "× better NCCL")
_OF_SCENARIO = {
    "S6": Table(
        ("network", "ranks", "connections per peer", "of a process", "NCCL default", *_RATIOS,
         "× one per peer", "NCCL: threads / descriptors / MiB", "bagua_net: the same"),
        _each_with_each,
    ),
    "S7": Table(
        ("network", "ranks", "size", "NCCL default", *_RATIOS, "gloo", "× gloo"),
        _allreduce,
    ),
    WHOLE_NCCL: Table(
        ("operation", "network", "ranks", "size", "NCCL default", *_RATIOS, "of the capacity"),
        _by_nccl,
    ),
    TORCH: Table(
        ("network", "ranks", "size", "gloo", "bagua_net", "× gloo", "goal",
         "processor time of a call, µs: gloo", "bagua_net", "× gloo"),
        _through_torch,
    ),
    "GPU": Table(
        ("network", "ranks", "size", "NCCL's sockets", "bagua_net", "× NCCL's sockets"),
        _of_nccl,
    ),
    "S8": Table(
        ("network", "connections", "message", "sum of the cards", "NCCL default", "in equal shares", "NCCL tuned",
         "its setting", "bagua_net", "in equal shares", "× default", "× better NCCL", "× in equal shares",
         "of the sum"),
        _cards,
    ),
    "S9": Table(
        ("network", "the driver", "NCCL default", *_RATIOS, "GB/s: NCCL", "bagua_net",
         "with polling: NCCL", "bagua_net", "softirq: NCCL", "bagua_net"),
        _cost,
    ),
    "S10": Table(
        ("network", "one stream", "bagua_net", "× one stream", "of the capacity",
         "dropped: one stream", "bagua_net", "streams of a connection: one stream", "bagua_net",
         "most of all: one stream", "bagua_net", "slowest pair: one stream", "bagua_net"),
        _pairs,
    ),
    "S11": Table(
        ("network", "connections", "NCCL", "bagua_net", "× NCCL", "longest call, ms: NCCL", "bagua_net",
         "longest that waited: NCCL", "bagua_net", "longest wait for the lock", "each: KiB / descriptors: NCCL",
         "bagua_net", "own threads, % of a processor: idle", "moving", "moving, MB/s: NCCL", "bagua_net",
         "ended, ms: NCCL", "bagua_net"),
        _many,
    ),
    "idle": Table(
        ("network", "connections", "NCCL", "bagua_net", "ms of processor per s: NCCL", "bagua_net",
         "threads: NCCL", "bagua_net"),
        _idle,
    ),
}  # fmt: skip
_OF_WORK = {
    "stream": Table(
        ("network", "connections", "message", "capacity", "raw sockets", "NCCL default", *_RATIOS, "of the limit"),
        _stream,
    ),
    "pingpong": Table(("network", "message", "raw sockets", "NCCL default", *_RATIOS), _pingpong),
}


def table_of(scenario: str, work: str) -> Table:
    """The table of a scenario."""
    return _OF_SCENARIO.get(scenario) or _OF_WORK[work]


# ---- the baseline, in any table ----

BASELINE_COLUMNS = ("baseline", "× baseline")


def baseline(record: CellRecord) -> list[str]:
    """The figure of the baseline, and that of the plugin as a multiple of it."""
    show = _collective if record.cell.work == "collective" else spread
    return [show(record, "baseline"), ratio_text(record, "baseline")]
