# SPDX-License-Identifier: MIT
"""The sides of a cell: NCCL's settings and how one is chosen, the baseline, what a pair is. Run: pytest benchmarks"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from bagua_net._nccl.socket_network import SocketTable
from benchmarks.loads.collective import CollectiveSpec
from benchmarks.loads.collective_rank import CollectiveRankSpec
from benchmarks.loads.rank import RankSpec
from benchmarks.loads.reading import Reading
from benchmarks.networks import namespaces
from benchmarks.report import markdown, results
from benchmarks.run import command, sides, track
from benchmarks.run.effort import FULL, QUICK
from benchmarks.run.scenarios import KIB, MIB, SCENARIOS, Cell, Scenario
from tests.benchmarks.support import needs_namespaces

CABLE = Cell("S1", "veth", 2, MIB)
LINE = Cell("S4", "wan", 2, MIB, (), 20, 0.1, "bbr")
FILES = sides.Files(Path("l"), Path("p"), SocketTable(Path("n"), "2.30.7", 12, 0, 0, 0), Path("r"), Path("b"))

Value = Callable[[sides.Side, int], float]


def _results() -> results.Results:
    settings = {"congestion_control": "bbr", "nccl_version": "2.30.7", "plugin_version": "0.1.0", "pairs": 2}
    computer = {"cpu": "a processor", "cores": 2, "memory_gib": 4, "kernel": "6.18"}
    return results.Results("2026-01-01T00:00:00+00:00", "transport", computer, {**settings, "plugin_settings": {}})


def _track(tmp_path: Path, names: Sequence[str], cell: Cell = CABLE) -> track.Track:
    plan = track.Plan(frozenset({cell.scenario}), tuple(names), QUICK, True, {}, "bbr", FILES, tmp_path / "a.jsonl")
    return track.Track(plan, _results())


def _measure(run: track.Track, names: Sequence[str], cell: Cell = CABLE) -> results.CellRecord:
    hosts = (namespaces.Host("a", "x", "10.0.0.1"), namespaces.Host("b", "x", "10.0.0.2"))
    run._measure_block([cell], list(names), hosts)
    return run._record(cell)


@pytest.fixture
def read_as(monkeypatch: pytest.MonkeyPatch) -> Callable[[Value], list[str]]:
    """Replaces the reading of a side by a function of it and of the number of readings before; returns their order."""

    def install(value: Value) -> list[str]:
        order: list[str] = []

        def read(batch: Sequence[sides.Side], hosts: namespaces.Hosts) -> list[list[Reading]]:
            (side,) = batch
            order.append(f"{side.name} {side.choice}".strip())
            figure = value(side, len(order))
            return [[Reading(figure, [figure])]]

        monkeypatch.setattr(sides, "read", read)
        return order

    return install


# ---- NCCL's settings ----


def test_the_grid_has_the_default_sockets_and_send_buffers() -> None:
    found = {side.choice: dict(side.settings) for side in sides.tuned(CABLE, QUICK, FILES)}
    assert found["default sockets"] == {}
    assert found["default sockets, 128 KiB"] == {"NCCL_SOCKET_SNDBUF": "131072"}
    assert found["2 × 8, 128 KiB"] == {
        "NCCL_SOCKET_NTHREADS": "2",
        "NCCL_NSOCKS_PERTHREAD": "8",
        "NCCL_SOCKET_SNDBUF": "131072",
    }


def test_a_long_line_is_tried_with_large_send_buffers() -> None:
    buffers = {side.settings.get("NCCL_SOCKET_SNDBUF") for side in sides.tuned(LINE, FULL, FILES)}
    assert buffers == {None, str(MIB), str(4 * MIB)}


def test_each_setting_of_the_grid_has_variants_that_cut_messages_otherwise() -> None:
    found = {side.choice: side for side in sides.tuned(CABLE, FULL, FILES)}
    variant = found["2 × 8, 128 KiB, inline 64 KiB, tasks of 16 KiB"]
    assert variant.varies == "2 × 8, 128 KiB"
    assert variant.settings == {
        **found["2 × 8, 128 KiB"].settings,
        "NCCL_SOCKET_INLINE": "65536",
        "NCCL_SOCKET_MIN_TASKSIZE": "16384",
    }
    plain = [side for side in found.values() if not side.varies]
    assert len(plain) == len(FULL.grid) * len(FULL.nccl_sndbuf)
    assert len(found) == len(plain) * (1 + len(FULL.nccl_cuts))


@pytest.mark.parametrize("scenario", [each for each in SCENARIOS if "nccl" in each.sides], ids=lambda each: each.name)
def test_nccl_has_its_best_setting_where_settings_can_help(scenario: Scenario) -> None:
    """More sockets cost more to make and to have."""
    assert ("tuned" in scenario.sides) is (scenario.name not in ("idle", "S11"))


def test_few_settings_do_not_change_the_windows() -> None:
    few = FULL.with_few_settings()
    assert (few.window_s, few.rounds, few.pairs) == (FULL.window_s, FULL.rounds, FULL.pairs)
    assert len(sides.tuned(CABLE, few, FILES)) == len(sides.tuned(CABLE, QUICK, FILES))


def test_settings_are_different_and_within_what_nccl_allows() -> None:
    for cell in (CABLE, LINE):
        found = sides.tuned(cell, FULL, FILES)
        assert len({side.choice for side in found}) == len(found)
    assert all(threads <= 16 and threads * sockets <= 64 for threads, sockets in FULL.grid + FULL.wan_grid)


def _planned(tmp_path: Path, *words: str) -> dict[str, int]:
    for name in ("libtraffic.so", "relay", "plugin.so"):
        (tmp_path / name).touch()
    files = ["--build", str(tmp_path), "--plugin", str(tmp_path / "plugin.so"), "--sides", "ours"]
    arguments = command._arguments(command.Program("transport", "", ("S1", "S10")), [*files, *words])
    return dict(command._plan(arguments, None).effort.pairs)


def test_readings_are_asked_for_by_scenario(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert _planned(tmp_path) == FULL.pairs
    found = _planned(tmp_path, "--pairs", "4,S10=1")
    assert (found["S1"], found["S4"], found["S10"]) == (4, 4, 1)
    assert _planned(tmp_path, "--pairs", "S10=1") == {**FULL.pairs, "S10": 1}
    with pytest.raises(track.TrackError, match="S99"):
        _planned(tmp_path, "--pairs", "S99=1")


def test_a_file_is_continued_with_other_scenarios() -> None:
    same = {"nccl_version": "2.30.7", "plugin_sha256": "a", "sides": ["ours"], "cells": 1, "effort": {}}
    stored = _results()
    stored.settings = {**same, "pairs": {"S1": 5}}
    command._continue(stored, {**same, "nccl_version": "", "pairs": {"S10": 2}, "cells": 20}, Path("a.jsonl"))
    assert stored.settings == {**same, "pairs": {"S1": 5, "S10": 2}, "cells": 20}
    with pytest.raises(track.TrackError, match="another plugin_sha256"):
        command._continue(stored, {**same, "plugin_sha256": "b", "pairs": {}}, Path("a.jsonl"))


# ---- how one is chosen ----


def test_finalists_are_read_in_every_pair_and_the_best_of_them_counts(
    tmp_path: Path, read_as: Callable[[Value], list[str]]
) -> None:
    screening = {"2 × 8": 3.0, "8 × 4": 2.0}  # the others: 1
    pairs = {"2 × 8": 1.0, "8 × 4": 5.0}  # with the windows of the pairs it is the other way round
    plain = [side for side in sides.tuned(CABLE, QUICK, FILES) if not side.varies]
    settings = len(plain) + QUICK.varied * len(QUICK.nccl_cuts)

    def value(side: sides.Side, count: int) -> float:
        if side.name == "ours":
            return 10.0
        return (screening if count <= settings else pairs).get(side.choice, 1.0)

    order = read_as(value)
    record = _measure(_track(tmp_path, ("tuned", "ours")), ("tuned", "ours"))
    assert record.finalists == {"tuned": ["2 × 8", "8 × 4"]}
    assert order[len(plain) : settings] == ["tuned 2 × 8, inline 64 KiB"]  # variants of the best alone
    assert order[settings:] == ["tuned 2 × 8", "tuned 8 × 4", "ours", "tuned 8 × 4", "ours", "tuned 2 × 8"]
    assert record.choices == {"tuned": "8 × 4"}
    assert record.values("tuned") == {0: 5.0, 1: 5.0}
    assert results.load(tmp_path / "a.jsonl").cells[CABLE.key] == record


def test_less_is_better_for_a_ping_pong() -> None:
    record = results.CellRecord(Cell("S5", "veth", 1, KIB), None, finalists={"tuned": ["a", "b"]})
    record.runs = [results.Run("tuned", choice, 0, 0, value, []) for choice, value in (("a", 2.0), ("b", 1.0))]
    record.choose()
    assert record.choices == {"tuned": "b"}


def test_through_flow_classes_settings_are_screened_with_several_seeds(
    tmp_path: Path, read_as: Callable[[Value], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = Cell("S2", "veth", 2, MIB, (1000,) * 8)
    monkeypatch.setattr(namespaces, "hash_flows", lambda *_: None)
    read_as(lambda side, count: 0.1)
    record = _measure(_track(tmp_path, ("tuned",), cell), ("tuned",), cell)
    screening = [run for run in record.runs if run.pair < 0]
    assert {run.pair for run in screening} == {-1, -2}
    assert len({run.seed for run in screening}) == 2
    assert all(len({run.seed for run in record.runs if run.pair == pair}) == 1 for pair in (-1, -2, 0, 1))


def test_an_interrupted_pair_is_read_again_as_a_whole(tmp_path: Path, read_as: Callable[[Value], list[str]]) -> None:
    order = read_as(lambda side, count: float(count))
    run = _track(tmp_path, ("nccl", "ours"))
    run._record(CABLE).runs = [results.Run(side, "", 0, 0, 1.0, []) for side in ("nccl", "ours")]
    run._record(CABLE).runs.append(results.Run("ours", "", 1, 0, 1.0, []))
    _measure(run, ("nccl", "ours"))
    assert order == ["ours", "nccl"]


def test_a_disturbed_pair_is_dropped_as_a_whole() -> None:
    record = results.CellRecord(CABLE)
    record.runs = [results.Run(side, "", pair, 0, 1.0, []) for pair in (0, 1) for side in ("nccl", "ours")]
    record.runs[0].neighbours = 0.5
    command._drop_disturbed_pairs(record)
    assert [(run.side, run.pair) for run in record.runs] == [("nccl", 1), ("ours", 1)]


# ---- the baseline ----


def _of_a_rank(spec: RankSpec | CollectiveSpec) -> RankSpec | CollectiveRankSpec:
    return spec.rank if isinstance(spec, CollectiveSpec) else spec


def test_the_baseline_is_the_other_library_with_the_same_settings() -> None:
    given = {"BAGUA_NET_NSTREAMS": "4"}
    for cell in (CABLE, Cell("S8", "cables", 2, MIB, cables_mbits=(1000, 250)), Cell("S7", "veth", 0, KIB)):
        (ours,) = sides.candidates([cell], "ours", QUICK, FILES, given)
        (baseline,) = sides.candidates([cell], "baseline", QUICK, FILES, given)
        assert baseline.settings == ours.settings
        spec, own = _of_a_rank(baseline.spec), _of_a_rank(ours.spec)
        if isinstance(spec, CollectiveRankSpec) and isinstance(own, CollectiveRankSpec):
            own = replace(own, token=spec.token)
        assert (spec.library, own.library) == ("b", "p")
        assert replace(spec, library="") == replace(own, library="")


def test_a_baseline_takes_turns_with_the_plugin(tmp_path: Path, read_as: Callable[[Value], list[str]]) -> None:
    order = read_as(lambda side, count: 1.0)
    _measure(_track(tmp_path, ("baseline", "ours")), ("baseline", "ours"))
    assert order == ["baseline", "ours", "ours", "baseline"]


def test_the_ratio_to_the_baseline_has_a_column_where_there_is_one() -> None:
    stored = _results()
    record = stored.cells[CABLE.key] = results.CellRecord(CABLE)
    record.runs = [results.Run("ours", "", 0, 0, 3.0, []), results.Run("nccl", "", 0, 0, 2.0, [])]
    assert "baseline" not in markdown.render(stored)
    record.runs.append(results.Run("baseline", "", 0, 0, 4.0, []))
    text = markdown.render(stored)
    assert "| baseline | × baseline |" in text
    assert "| 4.00 | **0.75** |" in text


@pytest.mark.parametrize(
    ("words", "sides_of_it"),
    [
        (["--baseline", "b.so"], ("raw", "nccl", "tuned", "gloo", "one stream", "baseline", "ours")),
        (["--baseline", "b.so", "--sides", "ours"], ("baseline", "ours")),
        ([], ("raw", "nccl", "tuned", "gloo", "one stream", "ours")),
    ],
)
def test_naming_a_baseline_adds_the_side(words: list[str], sides_of_it: tuple[str, ...]) -> None:
    arguments = command._arguments(command.Program("transport", "", ("S1",)), words)
    assert command._wanted(arguments)[1] == sides_of_it


def test_the_side_needs_a_library() -> None:
    arguments = command._arguments(command.Program("transport", "", ("S1",)), ["--sides", "baseline,ours"])
    with pytest.raises(track.TrackError, match="--baseline LIBRARY"):
        command._wanted(arguments)


@needs_namespaces
def test_two_builds_of_the_plugin_are_read(loops: Path, plugin: Path, tmp_path: Path) -> None:
    own = sides.Files(loops, plugin, None, loops.with_name("relay"), plugin)
    effort = replace(QUICK, pairs={"S1": 1}, warm_up_s=0.05, window_s=0.1)
    cell = Cell("S1", "loopback", 1, 64 * KIB)
    plan = track.Plan(frozenset({"S1"}), ("baseline", "ours"), effort, True, {}, "reno", own, tmp_path / "a.jsonl")
    plan = command._with_own_copies(plan, tmp_path)
    assert plan.files.baseline != plan.files.plugin
    run = track.Track(plan, _results())
    with run._network(cell) as hosts:
        run._measure_block([cell], ["baseline", "ours"], hosts)
    record = run._record(cell)
    assert min(*record.values("baseline").values(), *record.values("ours").values()) > 0


# ---- which cells ----


def test_rows_are_chosen_by_their_key(tmp_path: Path) -> None:
    plan = track.Plan(frozenset({"S1", "S2", "S8"}), ("ours",), QUICK, False, {}, "bbr", FILES, tmp_path / "a.jsonl")
    assert {cell.scenario for cell in plan.cells()} == {"S1", "S2", "S8"}
    assert {cell.scenario for cell in replace(plan, rows="8 × 1000").cells()} == {"S2"}


def test_sizes_and_connections_narrow_the_cells(tmp_path: Path) -> None:
    scenarios = frozenset({"S1", "S2", "S5"})
    plan = track.Plan(scenarios, ("ours",), QUICK, False, {}, "bbr", FILES, tmp_path / "a.jsonl")
    assert {cell.path for cell in replace(plan, paths=frozenset({"loopback"})).cells()} == {"loopback"}
    found = replace(plan, sizes=frozenset({4, MIB}), connections=frozenset({2})).cells()
    assert {(cell.scenario, cell.path, cell.connections, cell.size) for cell in found} == {
        *(("S1", path, 2, MIB) for path in ("loopback", "veth")),
        ("S2", "veth", 2, MIB),
        *(("S5", path, 1, size) for path in ("loopback", "veth") for size in (4, MIB)),
    }
