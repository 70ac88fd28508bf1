# SPDX-License-Identifier: MIT
"""S6 to S9 and idle: the arithmetic of their figures, their tables, a small run of each. Run: pytest benchmarks"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bagua_net._bench.workload.result import Row
from bagua_net._nccl.socket_network import SocketTable
from benchmarks.loads import collective, load, processes, reading
from benchmarks.loads.rank import RankSpec
from benchmarks.networks import namespaces
from benchmarks.report import chart, markdown, results
from benchmarks.run import sides, track
from benchmarks.run.effort import QUICK
from benchmarks.run.scenarios import KIB, MIB, Cell, cells
from tests.benchmarks.support import needs_namespaces

pytestmark = pytest.mark.gate

CABLES = Cell("S8", "cables", 2, MIB, cables_mbits=(1000, 250))
COST = Cell("S9", "veth", 2, MIB, (1000,), nap_us=50)
IDLE = Cell("idle", "veth", 2, MIB)
MANY = Cell("S11", "loopback", 600, KIB)


def _reply(**changes: Any) -> dict[str, Any]:
    used = {"user": 2.0, "system": 1.0, "driver_user": 1.5, "driver_system": 0.5, "softirq": 0.5, "switches": 8.0}
    held = {"threads": 2, "descriptors": 20, "memory_mib": 30.0, "devices": 1}
    return {"bytes": 4e9, "slowest": 1e9, "seconds": 2.0, "used": used, **held, **changes}


def _record(cell: Cell, details: dict[str, float] | None = None, **values: Sequence[float]) -> results.CellRecord:
    record = results.CellRecord(cell, namespaces.capacity(cell.rates_mbits) if cell.rates_mbits else None)
    for side, row in values.items():
        record.runs += [
            results.Run(side, "", turn, 0, value, [], details=dict(details or {})) for turn, value in enumerate(row)
        ]
    return record


def _results(*records: results.CellRecord) -> results.Results:
    settings = {"congestion_control": "bbr", "nccl_version": "2.30.7", "plugin_version": "0.1.0", "pairs": 1}
    settings["plugin_settings"] = ""
    computer = {"cpu": "a processor", "cores": 2, "memory_gib": 4, "kernel": "6.18"}
    rows = {record.cell.key: record for record in records}
    return results.Results("2026-01-01T00:00:00+00:00", "transport", computer, settings, rows)


# ---- who sends to whom ----


@pytest.mark.parametrize(("ranks", "lanes"), [(2, 3), (4, 2), (16, 1)])
def test_each_lane_is_connected_to_the_one_that_waits_for_it(ranks: int, lanes: int) -> None:
    peers = range(ranks - 1)
    # Handle: who listens, and from whom it expects a connection.
    handles = [
        b"".join(bytes([rank, (rank - 1 - k) % ranks, lane]) for k in peers for lane in range(lanes))
        for rank in range(ranks)
    ]
    for rank, row in enumerate(load.route(handles)):
        found = [tuple(row[at : at + 3]) for at in range(0, len(row), 3)]
        assert {expected for _, expected, _ in found} == {rank}
        assert sorted(found) == sorted(
            (peer, rank, lane) for peer in range(ranks) for lane in range(lanes) if peer != rank
        )


def test_the_first_half_of_the_ranks_is_on_the_first_host() -> None:
    a, b = namespaces.Host("a", "x", "10.0.0.1"), namespaces.Host("b", "x", "10.0.0.2")
    assert processes.place((a, b), 2) == [a, b]
    assert processes.place((a, b), 4) == [a, a, b, b]


# ---- figures ----


def test_equal_shares_go_by_the_slowest_connection() -> None:
    found = reading.of_replies("stream", [_reply(), _reply(bytes=2e9, slowest=0.5e9)], 2)
    assert found.value == pytest.approx(1.5)
    assert found.per_rank == [2.0, 1.0]
    assert found.details["equal_share"] == pytest.approx((1.0 + 0.5) / 2)


def test_cost_leaves_out_what_the_driver_does_in_user_mode_only() -> None:
    found = reading.of_replies("cost", [_reply(), _reply(bytes=2e9)], 2)
    assert found.per_rank == [pytest.approx(1.5 / 4), pytest.approx(1.5 / 2)]
    assert found.details["everything"] == pytest.approx((3 / 4 + 3 / 2) / 2)
    assert found.details["softirq"] == pytest.approx(0.5 / 6), "one machine, both ranks' bytes"


def test_idleness_is_by_the_second() -> None:
    found = reading.of_replies("idle", [_reply(), _reply()], 2)
    assert found.value == pytest.approx(4.0)
    assert found.details["cpu_ms_per_s"] == pytest.approx(1500.0)


def _calls(began: float, ended: float, longest: float = 0.0, longest_wait: float = 0.0) -> dict[str, float]:
    return {"count": 1, "longest": longest, "longest_wait": longest_wait, "began": began, "ended": ended}


def _many_reply(shift: float, **changes: Any) -> dict[str, Any]:
    """``shift``: seconds by which this rank is later than the first."""
    return {
        "listen": _calls(0.5, 0.75, 0.003),
        "connect": _calls(1 + shift, 2 + shift, 0.004, 0.001),
        "move": _calls(3, 5, 0.02),
        "close": _calls(6 + shift, 6.5 + shift, 0.005),
        "held": {"descriptors": 1.0, "memory_mib": 0.5, "threads": 0.0},
        "threads": 2,
        "idle": {"seconds": 2.0, "bytes": 0, "used": _reply()["used"]},
        "moving": {"seconds": 2.0, "bytes": 3e6, "used": _reply()["used"]},
        **changes,
    }


def test_connections_are_made_when_the_last_one_is() -> None:
    found = reading.of_replies("connections", [_many_reply(0), _many_reply(0.25)], 600)
    assert found.value == pytest.approx(250 + 1250), "listening, then from the first connect to the last"
    assert found.details["close_ms"] == pytest.approx(750)
    assert found.details["received_mb_per_s"] == pytest.approx(3)


def test_the_longest_call_is_that_of_any_rank_and_of_its_phase() -> None:
    slow = _many_reply(0, connect=_calls(1, 2, 0.3, 0.2))
    details = reading.of_replies("connections", [_many_reply(0), slow], 600).details
    assert (details["longest_ms"], details["longest_wait_ms"]) == pytest.approx((300, 200))
    assert (details["moving_longest_ms"], details["close_longest_ms"]) == pytest.approx((20, 5))


def test_the_longest_wait_for_the_lock_is_that_of_any_rank_that_says_so() -> None:
    waited = [_many_reply(0, lock_wait=0.001), _many_reply(0, lock_wait=0.003)]
    assert reading.of_replies("connections", waited, 600).details["lock_wait_ms"] == pytest.approx(3)
    details = reading.of_replies("connections", [_many_reply(0)], 600).details
    assert "lock_wait_ms" not in details


def test_own_threads_are_all_but_the_driving_one() -> None:
    details = reading.of_replies("connections", [_many_reply(0)], 600).details
    assert details["moving_percent"] == pytest.approx((3.0 - 2.0) / 2 * 100)


def test_what_a_process_holds_is_that_of_the_largest() -> None:
    found = reading.of_replies("stream", [_reply(), _reply(threads=5, descriptors=10)], 2)
    assert found.details["threads"] == 5
    assert found.details["descriptors"] == 20


def test_a_wrong_sum_is_no_reading() -> None:
    row = Row("", "allreduce", 4, 4 * MIB, MIB, "float32", "sum", "bagua", [0.002, 0.001, 0.003], 5, 0, [0.001])
    good = collective._reading(row)
    assert good.value == pytest.approx(4 * MIB / 0.002 / 1e9 * 1.5), "nccl-tests: 2 (n - 1) / n"
    assert good.details["us"] == pytest.approx(2000)
    assert good.details["processor_us"] == pytest.approx(1000)
    with pytest.raises(processes.RankFailed, match="3 elements are wrong"):
        collective._reading(replace(row, wrong=3))


# ---- cells ----


def test_sizes_of_a_collective_are_one_block() -> None:
    for name in ("S7", "torch"):
        collectives = [cell for cell in cells(quick=False) if cell.scenario == name]
        assert len({cell.block for cell in collectives}) * 10 == len(collectives)
    others = [cell for cell in cells(quick=False) if cell.work != "collective"]
    assert all(cell.block == cell.key for cell in others)


def test_keys_of_two_ranks_are_what_they_were() -> None:
    assert Cell("S1", "veth", 2, MIB).key == "S1 | veth | 2 | 1048576"


def test_every_cell_has_sides_that_can_be_built() -> None:
    table = SocketTable(Path("n"), "2.30.7", 12, 0, 0, 0)
    files = sides.Files(Path("l"), Path("p"), table, Path("r"), Path("b"))
    for cell in cells(quick=False):
        for name in cell.heading.sides:
            assert sides.candidates([cell], name, QUICK, files, {})


def test_an_nccl_that_the_collectives_cannot_drive_is_left_out_of_them_alone() -> None:
    files = sides.Files(Path("l"), Path("p"), SocketTable(Path("n"), "2.18.3", 6, 0, 0, 0), Path("r"))
    assert "2.18.3" in sides.obstacle(Cell("S7", "veth", 0, KIB), "nccl", files)
    assert not sides.obstacle(Cell("S1", "veth", 1, KIB), "nccl", files)


# ---- tables ----


def test_the_share_of_one_connection_per_peer_is_shown() -> None:
    one = _record(Cell("S6", "veth", 1, 64 * KIB, ranks=16), nccl=[0.5], ours=[1.0])
    eight = _record(Cell("S6", "veth", 8, 64 * KIB, ranks=16), nccl=[0.5], ours=[0.7])
    text = markdown.render(_results(one, eight))
    assert "| 16 | 1 | 30 | 0.500 | – | – | 1.00 | 2.00 | – | – |" in text
    assert "| 16 | 8 | 240 | 0.500 | – | – | 0.700 | 1.40 | – | 0.70 |" in text


def test_small_collectives_are_times_and_large_ones_rates() -> None:
    small = _record(Cell("S7", "veth", 0, 4 * KIB), {"us": 70.0}, nccl=[0.1], gloo=[0.01], ours=[0.09])
    large = _record(Cell("S7", "veth", 0, MIB), {"us": 70.0}, nccl=[1.0], ours=[2.0])
    text = markdown.render(_results(small, large))
    assert "| 2 | 4 KiB | 70.0 µs | – | – | 70.0 µs | **0.90** | – | 70.0 µs | 9.00 |" in text
    assert "| 2 | 1 MiB | 1.00 | – | – | 2.00 | 2.00 | – | – | – |" in text


@pytest.mark.parametrize(("devices", "alone"), [(1, False), (2, True)])
def test_a_plugin_that_cannot_join_cards_is_shown_as_one(devices: int, alone: bool) -> None:
    record = _record(CABLES, {"equal_share": 0.05, "devices": devices}, nccl=[0.14], ours=[0.12])
    assert ("one card" in markdown.render(_results(record))) is alone


@pytest.mark.parametrize("cell", [COST, IDLE])
def test_more_of_the_processor_is_a_loss(cell: Cell) -> None:
    dearer = markdown.render(_results(_record(cell, nccl=[1.0], ours=[2.0])))
    assert "**2.00**" in dearer
    assert "**" not in markdown.render(_results(_record(cell, nccl=[2.0], ours=[1.0])))


def test_a_side_that_reads_nought_is_divided_by_nobody() -> None:
    assert "| 0.000 | **3.00** |" in markdown.render(_results(_record(IDLE, nccl=[0.0], ours=[3.0])))
    assert "| 0.000 | – | – | 3.00 | – |" in markdown.render(_results(_record(COST, nccl=[0.0], ours=[3.0])))


def test_more_time_to_connect_is_a_loss() -> None:
    text = markdown.render(_results(_record(MANY, {"idle_percent": 0.5}, nccl=[40.0], ours=[50.0])))
    assert "| loopback | 1200 | 40.0 | 50.0 | **1.25** |" in text
    assert "| 0.500 |" in text


# ---- pictures ----


def test_lines_of_a_picture_point_up_where_the_plugin_is_better() -> None:
    rates = [_record(Cell("S1", "veth", 1, size), nccl=[1.0], ours=[2.0]) for size in (KIB, MIB)]
    times = [_record(Cell("S5", "veth", 1, size), nccl=[2.0], ours=[1.0]) for size in (KIB, MIB)]
    alone = _record(CABLES, nccl=[1.0], ours=[2.0])
    drawn = chart.panels(_results(*rates, *times, alone))
    assert list(drawn.values()) == [{"veth": {KIB: 2.0, MIB: 2.0}}] * 2


def test_a_picture_is_small_and_the_same_each_time(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    stored = _results(*(_record(Cell("S1", "veth", 1, size), nccl=[1.0], ours=[2.0]) for size in (KIB, MIB)))
    assert chart.write(tmp_path / "a.svg", stored)
    assert chart.write(tmp_path / "b.svg", stored)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()
    assert (tmp_path / "a.svg").stat().st_size < 50_000
    assert not chart.write(tmp_path / "c.svg", _results())


# ---- small runs in real namespaces ----


def _files(loops: Path, plugin: Path) -> sides.Files:
    return sides.Files(loops, plugin, SocketTable(Path(), "", 12, 0, 0, 0), loops.with_name("relay"))


def _spec(cell: Cell, files: sides.Files) -> RankSpec:
    spec = sides.candidates([cell], "ours", QUICK, files, {})[0].spec
    assert isinstance(spec, RankSpec)
    return replace(spec, warm_up_s=0.1, window_s=0.3)


@needs_namespaces
def test_many_ranks_reach_each_other(loops: Path, plugin: Path) -> None:
    cell = Cell("S6", "veth", 2, 16 * KIB, ranks=4)
    with namespaces.veth("reno") as hosts:
        found = load.measure(_spec(cell, _files(loops, plugin)), hosts, {})
    assert len(found.per_rank) == 4
    assert min(found.per_rank) > 0
    assert found.details["equal_share"] > 0, "every connection carried something"
    assert found.details["threads"] >= 1
    assert found.details["descriptors"] > 2 * 3 * 2, "there are as many connections"


@needs_namespaces
def test_an_allreduce_is_read_at_every_size(loops: Path, plugin: Path) -> None:
    block = [Cell("S7", "veth", 0, size, ranks=4) for size in (KIB, 64 * KIB)]
    effort = replace(QUICK, collective_rounds=1, collective_s=0.01)
    side = sides.candidates(block, "ours", effort, _files(loops, plugin), {})[0]
    with namespaces.veth("reno") as hosts:
        (found,) = sides.read([side], hosts)
    assert [row.value > 0 for row in found] == [True, True]
    for row, cell in zip(found, block, strict=True):
        assert row.value == pytest.approx(1.5 * cell.size / row.details["us"] / 1e3)


@needs_namespaces
def test_a_rank_of_a_collective_that_cannot_start_is_named(loops: Path) -> None:
    files = _files(loops, Path("/no-such-library.so"))
    side = sides.candidates([Cell("S7", "loopback", 0, KIB)], "ours", QUICK, files, {})[0]
    with (
        namespaces.loopback("reno") as hosts,
        pytest.raises(processes.RankFailed, match=r"rank \d failed: .*no-such-lib"),
    ):
        sides.read([side], hosts)


@pytest.mark.nightly
@needs_namespaces
def test_connections_spread_over_both_cards_fill_both(loops: Path, plugin: Path) -> None:
    rates = (40, 10)
    spec = _spec(replace(CABLES, cables_mbits=rates), _files(loops, plugin))
    with namespaces.cables(rates, "reno") as hosts:
        found = load.measure(replace(spec, devices=2, window_s=1.0), hosts, {})
    slow = namespaces.capacity(rates[1:])
    assert found.details["devices"] == 2
    assert namespaces.capacity(rates[:1]) < found.value, "more than the faster one lets through"
    assert found.details["equal_share"] < 3 * slow, "the connection on the slower one has no more than that"


@needs_namespaces
def test_processor_time_is_counted_at_a_capped_rate(loops: Path, plugin: Path) -> None:
    cell = replace(COST, classes_mbits=(200,))
    with namespaces.veth("reno") as hosts:
        namespaces.shape(hosts, cell.classes_mbits)
        namespaces.hash_flows(hosts, 1, 0)
        found = load.measure(_spec(cell, _files(loops, plugin)), hosts, {})
    assert 0 < found.value <= found.details["everything"]
    assert 0 < found.details["rate"] < 2 * namespaces.capacity(cell.classes_mbits)


@needs_namespaces
def test_nothing_is_carried_while_idle(loops: Path, plugin: Path) -> None:
    with namespaces.loopback("reno") as hosts:
        found = load.measure(_spec(IDLE, _files(loops, plugin)), hosts, {})
    assert found.value >= 0
    assert found.details["received"] == 0


@needs_namespaces
def test_connections_are_made_and_carry_messages(loops: Path, plugin: Path) -> None:
    with namespaces.loopback("reno") as hosts:
        found = load.measure(_spec(replace(MANY, connections=40), _files(loops, plugin)), hosts, {})
    assert found.value > 0
    assert found.details["descriptors"] >= 1, "of each end"
    assert found.details["received_mb_per_s"] > 0
    assert found.details["longest_ms"] > 0
    assert found.details["close_longest_ms"] > 0


@needs_namespaces
def test_a_crowd_is_as_large_as_asked_for() -> None:
    with namespaces.loopback("reno") as hosts:
        before = namespaces.run(["ip", "-n", hosts[0].namespace, "-o", "link"]).count("\n")
        namespaces.crowd(hosts[0], 6)
        after = namespaces.run(["ip", "-n", hosts[0].namespace, "-o", "link"]).count("\n")
        addresses = namespaces.run(["ip", "-n", hosts[0].namespace, "-o", "-6", "address"]).count("crowd")
    assert (after - before, addresses) == (6, 6)


# ---- the run over them ----


def test_a_block_is_read_again_where_a_size_is_missing(tmp_path: Path) -> None:
    block = [Cell("S7", "veth", 0, size) for size in (KIB, MIB)]
    stored = _results(_record(block[0], nccl=[1.0], ours=[1.0]), _record(block[1], nccl=[1.0]))
    files = sides.Files(Path(), Path(), SocketTable(Path(), "", 12, 0, 0, 0), Path())
    effort = replace(QUICK, pairs={"S7": 1})
    plan = track.Plan(frozenset({"S7"}), ("nccl", "ours"), effort, True, {}, "bbr", files, tmp_path / "a.json")
    run = track.Track(plan, stored)
    assert run._complete(block, ["nccl"])
    assert not run._complete(block, ["nccl", "ours"])
