# SPDX-License-Identifier: MIT
"""The track's own arithmetic, and that its flow classes do what the tables say. Run: pytest benchmarks"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bagua_net._nccl.socket_network import SocketTable
from benchmarks import ROOT
from benchmarks.loads import load, processes
from benchmarks.loads.rank import RankSpec
from benchmarks.networks import namespaces
from benchmarks.report import machine, markdown, results
from benchmarks.run import command, sides, track
from benchmarks.run.effort import QUICK
from benchmarks.run.scenarios import MIB, Cell, cells
from tests.benchmarks.support import needs_namespaces

CAPPED = Cell("S2", "veth", 1, MIB, (1000,) * 8)


def _record(cell: Cell, **values: Sequence[float | None]) -> results.CellRecord:
    record = results.CellRecord(cell, namespaces.capacity(cell.classes_mbits) if cell.classes_mbits else None)
    for side, row in values.items():
        record.runs += [results.Run(side, "", turn, 0, value, []) for turn, value in enumerate(row)]
    return record


def _results(*records: results.CellRecord) -> results.Results:
    settings: dict[str, Any] = {"congestion_control": "bbr", "nccl_version": "2.30.7", "plugin_version": "0.1.0"}
    settings |= {"pairs": 3, "plugin_settings": ""}
    computer = {"cpu": "a processor", "cores": 2, "memory_gib": 4, "kernel": "6.18"}
    rows = {record.cell.key: record for record in records}
    return results.Results("2026-01-01T00:00:00+00:00", "transport", computer, dict(settings), rows)


@pytest.mark.parametrize(
    ("classes", "gigabytes"),
    [((1000,) * 8, 0.956), ((1000,) * 6 + (250,) * 2, 0.777), ((900, 800, 700, 600, 400, 200, 100, 50), 0.448)],
)
def test_capacity_is_the_payload_share_of_the_rates(classes: tuple[int, ...], gigabytes: float) -> None:
    assert namespaces.capacity(classes) == pytest.approx(gigabytes, abs=0.0006)


def test_cells_have_keys_of_their_own() -> None:
    for quick in (True, False):
        keys = [cell.key for cell in cells(quick)]
        assert len(set(keys)) == len(keys)


def _compared(
    tmp_path: Path, before: Sequence[float | None], after: Sequence[float | None], cell: Cell
) -> tuple[int, str]:
    """Status and output, for figures of the plugin beside a rival whose own figures differ between the runs."""
    files = []
    for name, scale, own in (("before", 1.0, before), ("after", 3.0, after)):
        files.append(tmp_path / f"{name}.jsonl")
        ours = [each and each * scale for each in own]
        _results(_record(cell, nccl=[scale] * len(own), ours=ours)).save(files[-1])
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "transport", "--compare", *map(str, files)],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert done.stderr == ""
    return done.returncode, done.stdout


def test_two_runs_are_compared_by_their_ratios(tmp_path: Path) -> None:
    rate, time = Cell("S1", "veth", 1, MIB), Cell("S5", "veth", 1, 4)
    status, said = _compared(tmp_path, [1.2, 1.21, 1.19], [1.0, 1.01, 0.99], rate)
    assert (status, "| 1.20 | 1.00 | slower |" in said) == (1, True), said
    status, said = _compared(tmp_path, [1.2, 1.21, 1.19], [1.0, 1.01, 0.99], time)
    assert (status, "| 0.833 | 1.00 | faster |" in said) == (0, True), said
    for same in ([1.2, 1.0, 1.4], [1.21, 1.22, 1.2], [1.0, None, 1.01]):
        status, said = _compared(tmp_path, [1.2, 1.21, 1.19], same, rate)
        assert (status, said.splitlines()[0][:8]) == (0, "1 of 1 r"), said


def test_ratio_is_taken_within_pairs() -> None:
    # The machine was twice as fast in the second pair: the medians of the sides would say otherwise.
    record = _record(Cell("S1", "veth", 1, MIB), nccl=[1.0, 4.0, None], ours=[2.0, 8.0, 1.0])
    assert "| 2.00 | – |" in markdown.render(_results(record))


@pytest.mark.parametrize(
    ("cell", "own", "bold"),
    [
        (Cell("S1", "veth", 1, MIB), 0.9, True),
        (Cell("S1", "veth", 1, MIB), 1.1, False),
        (Cell("S5", "veth", 1, MIB), 0.9, False),
        (Cell("S5", "veth", 1, MIB), 1.1, True),
    ],
)
def test_a_loss_is_bold(cell: Cell, own: float, bold: bool) -> None:
    text = markdown.render(_results(_record(cell, nccl=[1.0], ours=[own])))
    assert (f"**{own:.2f}**" in text) is bold


def test_the_better_of_nccl_settings_is_the_rival() -> None:
    record = _record(Cell("S1", "veth", 1, MIB), nccl=[1.0], tuned=[4.0], ours=[2.0])
    assert "| 2.00 | **0.50** |" in markdown.render(_results(record))


def test_failures_and_disturbance_are_shown() -> None:
    record = _record(Cell("S1", "veth", 1, MIB), nccl=[1.0], ours=[2.0])
    record.runs.append(results.Run("ours", "", 1, 0, None, [], 0.4, "rank 0 failed"))
    text = markdown.render(_results(record))
    assert "2.00, 1 failed" in text
    assert "not quiet" in text


def test_a_stored_track_is_read_back_as_it_was(tmp_path: Path) -> None:
    stored = _results(_record(CAPPED, raw=[0.9], ours=[0.8, None]))
    stored.save(tmp_path / "a.jsonl")
    loaded = results.load(tmp_path / "a.jsonl")
    assert list(loaded.lines()) == list(stored.lines())
    assert loaded.cells[CAPPED.key].runs == stored.cells[CAPPED.key].runs
    assert loaded.cells[CAPPED.key].limit == pytest.approx(stored.cells[CAPPED.key].limit, rel=1e-5)


def test_another_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"format": 0}')
    with pytest.raises(results.ResultsUnusable, match="format"):
        results.load(tmp_path / "a.jsonl")


def test_a_reading_above_the_capacity_ends_the_track() -> None:
    record = _record(CAPPED)
    track._check_limit(record, results.Run("ours", "", 0, 1, 0.9, [0.9, 0.95]))
    with pytest.raises(track.TrackError, match="shaper"):
        track._check_limit(record, results.Run("ours", "", 0, 1, 0.9, [0.8, 1.0]))


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two processors")
def test_the_distance_of_two_processors_is_read_and_told(loops: Path) -> None:
    least, median, most = machine.core_latency_ns(loops)
    assert 1 <= least <= median <= most
    stored = _results(_record(CAPPED, ours=[0.8]))
    stored.machine["core_latency_ns"] = [least, median, most]
    assert f"{least}–{most} ns" in markdown.render(stored)


def test_one_processor_is_at_no_distance(loops: Path) -> None:
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        assert machine.core_latency_ns(loops) == []
    finally:
        os.sched_setaffinity(0, before)


def test_loops_of_an_older_build_are_refused(plugin: Path) -> None:
    with pytest.raises(track.TrackError, match="older build: cmake --build"):
        command._computer(plugin)


def test_work_of_a_child_that_goes_on_is_our_own() -> None:
    before = machine._cpu_times()
    work = "import sys, time\nwhile time.process_time() < 0.3: pass\nprint(flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", work], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert machine._cpu_times().own - before.own >= 0.25
        child.communicate()
    assert machine._cpu_times().own - before.own >= 0.25


def test_a_line_that_lost_more_than_was_asked_for_ends_the_track() -> None:
    cell = next(cell for cell in cells(quick=True) if cell.path == "wan")
    track._check_line(cell, {"directions": [{"dropped": 0}, {"dropped": 0}]})
    with pytest.raises(track.TrackError, match="3 packets"):
        track._check_line(cell, {"directions": [{"dropped": 0}, {"dropped": 3}]})


# ---- with real namespaces ----


def _raw_spec(loops: Path, lanes: int) -> RankSpec:
    files = sides.Files(loops, Path(), SocketTable(Path(), "", 12, 0, 0, 0), loops.with_name("relay"))
    side = sides.raw(Cell("S1", "veth", lanes, 64 * 1024), QUICK, files)[0]
    assert isinstance(side.spec, RankSpec)
    return replace(side.spec, warm_up_s=0.1, window_s=0.3)


def _payload_classes(host: namespaces.Host) -> dict[str, int]:
    """Class → bytes, of the flow classes that carried any."""
    command = ["tc", "-s", "-n", host.namespace, "class", "show", "dev", host.interface]
    text = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True).stdout
    rows = re.findall(r"class htb 1:(\w+) .*?Sent (\d+) bytes", text, re.DOTALL)
    return {number: int(sent) for number, sent in rows if number != "ff" and int(sent)}


@needs_namespaces
def test_a_flow_keeps_to_one_class_and_to_its_rate(loops: Path) -> None:
    rates = (100,) * 8
    with namespaces.veth("reno") as hosts:
        namespaces.shape(hosts, rates)
        namespaces.hash_flows(hosts, len(rates), 0x1234)
        reading = load.measure(_raw_spec(loops, 1), hosts, {})
        assert 0 < max(reading.per_rank) <= 1.1 * namespaces.capacity(rates[:1])
        for host in hosts:
            assert len(_payload_classes(host)) == 1, "acknowledgements of the reverse flow were put into a class too"


@pytest.mark.gate
@needs_namespaces
def test_many_flows_reach_every_class(loops: Path) -> None:
    with namespaces.veth("reno") as hosts:
        namespaces.shape(hosts, (100,) * 4)
        namespaces.hash_flows(hosts, 4, 0x1234)
        load.measure(_raw_spec(loops, 64), hosts, {})  # four classes: missed by one of 10⁷ draws
        assert set(_payload_classes(hosts[0])) == {"1", "2", "3", "4"}


@needs_namespaces
def test_a_rank_that_cannot_start_is_named(loops: Path) -> None:
    with (
        namespaces.loopback("reno") as hosts,
        pytest.raises(processes.RankFailed, match=r"rank 0 failed: .*no-such-library"),
    ):
        load.measure(replace(_raw_spec(loops, 1), kind="ours", library="/no-such-library.so"), hosts, {})
    assert not [name for name in Path("/run/netns").iterdir() if name.name.startswith(f"bnet-track-{os.getpid()}-")]
