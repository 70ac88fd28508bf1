# SPDX-License-Identifier: MIT
"""torch.distributed: the goals and their table, the command, a small run of each side. Run: pytest benchmarks"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from bagua_net._nccl import discovery
from benchmarks.loads.collective import CollectiveSpec
from benchmarks.networks import namespaces
from benchmarks.report import chart, markdown, results
from benchmarks.run import command, scenarios, sides
from benchmarks.run.effort import QUICK
from benchmarks.run.scenarios import KIB, MIB, TORCH, Cell, torch_goal
from tests.benchmarks.support import measure, needs_namespaces

LOOPBACK = Cell(TORCH, "loopback", 0, KIB)
CAPPED = Cell(TORCH, "veth", 0, MIB, (1000,) * 8)
LINE = Cell(TORCH, "wan", 0, MIB, (), 20, 0.1, "bbr")


def _record(cell: Cell, processor_us: dict[str, float] | None = None, **values: Sequence[float]) -> results.CellRecord:
    record = results.CellRecord(cell, None)
    for side, row in values.items():
        details = {"us": 70.0, **({"processor_us": processor_us[side]} if processor_us else {})}
        record.runs += [results.Run(side, "", turn, 0, value, [], details=details) for turn, value in enumerate(row)]
    return record


def _results(*records: results.CellRecord) -> results.Results:
    settings = {"congestion_control": "bbr", "nccl_version": "", "torch_version": "2.13.0", "plugin_version": "0.1.0"}
    computer = {"cpu": "a processor", "cores": 2, "memory_gib": 4, "kernel": "6.18"}
    rows = {record.cell.key: record for record in records}
    more = {"pairs": 1, "plugin_settings": ""}
    return results.Results("2026-01-01T00:00:00+00:00", "torch-allreduce", computer, {**settings, **more}, rows)


# ---- goals ----


@pytest.mark.parametrize(
    ("cell", "goal"),
    [
        (LOOPBACK, 3),
        (replace(LOOPBACK, size=64 * KIB), 3),
        (replace(LOOPBACK, size=256 * KIB), 1),
        (replace(LOOPBACK, size=MIB), 1.5),
        (replace(LINE, size=4 * KIB), 3),
        (LINE, 1.5),
        (CAPPED, 3),
        (replace(CAPPED, size=256 * KIB), 3),
    ],
)
def test_goals_are_by_size_and_by_caps(cell: Cell, goal: float) -> None:
    assert torch_goal(cell) == goal


@pytest.mark.parametrize(
    ("cell", "own", "shown"),
    [
        (LOOPBACK, 3.1, "| 3.10 | 3 |"),
        (LOOPBACK, 2.9, "| 2.90 | 3, missed |"),
        (LOOPBACK, 0.9, "| **0.90** | 3, missed |"),
        (replace(LOOPBACK, size=256 * KIB), 1.1, "| 1.10 | 1 |"),
        (CAPPED, 2.0, "| 2.00 | 3, missed |"),
    ],
)
def test_a_goal_stands_beside_what_was_read(cell: Cell, own: float, shown: str) -> None:
    assert shown in markdown.render(_results(_record(cell, gloo=[1.0], ours=[own])))


def test_more_of_the_processor_is_a_loss_too() -> None:
    dear = _record(LOOPBACK, {"gloo": 50.0, "ours": 60.0}, gloo=[1.0], ours=[4.0])
    assert "| 4.00 | 3 | 50.0 | 60.0 | **1.20** |" in markdown.render(_results(dear))
    cheap = _record(LOOPBACK, {"gloo": 50.0, "ours": 40.0}, gloo=[1.0], ours=[4.0])
    assert "| 4.00 | 3 | 50.0 | 40.0 | 0.80 |" in markdown.render(_results(cheap))


def test_the_report_names_no_nccl_where_none_took_part() -> None:
    text = markdown.render(_results(_record(LOOPBACK, gloo=[1.0], ours=[4.0])))
    assert "NCCL" not in text
    assert "gloo of torch 2.13.0" in text


def test_the_picture_is_of_gloo() -> None:
    records = [_record(replace(LOOPBACK, size=size), gloo=[1.0], ours=[4.0]) for size in (KIB, MIB)]
    drawn = chart.panels(_results(*records))
    (panel,) = drawn
    assert panel.rival == "gloo"
    assert drawn[panel] == {"loopback": {KIB: 4.0, MIB: 4.0}}


# ---- the cells and their sides ----


def test_networks_are_those_of_the_collectives_alone() -> None:
    found = {
        name: [replace(cell, scenario="") for cell in scenarios.cells(quick=False) if cell.scenario == name]
        for name in (TORCH, "S7")
    }
    assert found[TORCH] == found["S7"]


def test_a_quick_run_has_a_free_a_capped_and_a_long_network() -> None:
    cells = [cell for cell in scenarios.cells(quick=True) if cell.scenario == TORCH]
    assert {(cell.path, bool(cell.classes_mbits)) for cell in cells} == {
        ("loopback", False),
        ("veth", True),
        ("wan", False),
    }


def test_both_sides_go_through_torch() -> None:
    files = sides.Files(Path("l"), Path("p"), None, Path("r"))
    found = {}
    for name in LOOPBACK.heading.sides:
        (side,) = sides.candidates([LOOPBACK], name, QUICK, files, {"BAGUA_NET_NSTREAMS": "4"})
        assert isinstance(side.spec, CollectiveSpec)
        found[name] = (side.spec.rank.transport, dict(side.settings))
    assert found == {"gloo": ("gloo", {}), "ours": ("torch+bagua", {"BAGUA_NET_NSTREAMS": "4"})}


# ---- the command ----


def test_the_command_shows_what_was_stored(tmp_path: Path) -> None:
    _results(_record(LOOPBACK, gloo=[1.0], ours=[4.0])).save(tmp_path / "a.jsonl")
    done = measure("torch-allreduce", "--report", str(tmp_path / "a.jsonl"))
    assert done.returncode == 0, done.stderr
    assert "### torch: allreduce through torch.distributed" in done.stdout


def test_the_commands_share_no_scenario() -> None:
    rest = ",".join(row.name for row in scenarios.SCENARIOS if row.name != TORCH)
    assert f"which of {rest}\n" in measure("transport", "--help").stdout
    assert f"which of {TORCH}\n" in measure("torch-allreduce", "--help").stdout


@pytest.mark.parametrize(
    ("scenario", "names", "needed"),
    [
        (TORCH, "gloo,ours", False),
        (TORCH, ",".join(name for name in sides.NAMES if name != "baseline"), False),
        ("S7", "gloo,ours", False),
        ("S7", "nccl", True),
    ],
)
def test_nccl_is_looked_for_where_a_side_needs_it(
    monkeypatch: pytest.MonkeyPatch, scenario: str, names: str, needed: bool
) -> None:
    def missing() -> None:
        raise discovery.NcclNotFound("no NCCL is installed here")

    monkeypatch.setattr(discovery, "libraries", missing)
    program = command.Program("a", "", (TORCH, "S7"))
    arguments = command._arguments(program, ["--scenario", scenario, "--sides", names])
    if needed:
        with pytest.raises(discovery.NcclNotFound):
            command._libraries(arguments)
    else:
        assert command._libraries(arguments) == [None]


# ---- a small run ----


@pytest.mark.nightly
@needs_namespaces
def test_an_allreduce_through_torch_is_read_at_every_size_side_by_side(loops: Path, plugin: Path) -> None:
    pytest.importorskip("torch")
    block = [replace(LOOPBACK, path="veth", size=size) for size in (KIB, 64 * KIB)]
    effort = replace(QUICK, collective_rounds=1, collective_s=0.01)
    files = sides.Files(loops, plugin, None, loops.with_name("relay"))
    order = [side for name in ("ours", "gloo") for side in sides.candidates(block, name, effort, files, {})]
    (batch,) = sides.batches(order, block[0])
    with namespaces.veth("reno") as hosts:
        found = sides.read(batch, hosts)
    assert len(found) == len(order)
    for rows in found:
        for row, cell in zip(rows, block, strict=True):
            assert row.value == pytest.approx(cell.size / row.details["us"] / 1e3)
            assert row.details["processor_us"] > 0


def test_sides_are_read_alone_but_through_torch() -> None:
    files = sides.Files(Path("l"), Path("p"), None, Path("r"))
    alone = replace(LOOPBACK, scenario="S7")
    order = [side for name in ("gloo", "ours") for side in sides.candidates([alone], name, QUICK, files, {})]
    assert sides.batches(order, alone) == [[order[0]], [order[1]]]
