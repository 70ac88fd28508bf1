# SPDX-License-Identifier: MIT
"""S12, NCCL's own collectives on emulated GPUs: its cells, its sides, a small run. Run: pytest benchmarks"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bagua_net._nccl.discovery import LIBRARY_VARIABLE
from bagua_net._nccl.socket_network import SocketTable, inspect
from benchmarks.networks import namespaces
from benchmarks.report import markdown, results
from benchmarks.run import sides
from benchmarks.run.effort import QUICK
from benchmarks.run.scenarios import KIB, MIB, Cell, cells
from tests.benchmarks.support import needs_namespaces
from tests.support import nccl_wheels
from tests.support.tiers import variants

FILES = sides.Files(Path("l"), Path("p.so"), SocketTable(Path("n"), "2.30.7", 12, 0, 0, 0), Path("r"), Path("b.so"))
FREE = Cell("S12", "veth", 0, MIB)
CAPPED = replace(FREE, classes_mbits=(1000,) * 8)


def _settings(cell: Cell, name: str, **given: str) -> list[dict[str, str]]:
    return [dict(side.settings) for side in sides.candidates([cell], name, QUICK, FILES, given)]


def test_every_network_has_allreduce_and_the_fast_ones_all_to_all() -> None:
    found = [cell for cell in cells(quick=False) if cell.scenario == "S12"]
    networks = {cell.network for cell in cells(quick=False) if cell.scenario == "S7"}
    rows = {(cell.op, cell.network, cell.ranks) for cell in found}
    ring = {("allreduce", network, ranks) for network in networks for ranks in (2, 4)}
    ring |= {("allreduce", network, 8) for network in ("loopback", "veth")}
    ring |= {("allreduce", f"veth, 8 × {rate} Mbit/s", ranks) for rate in (500, 250) for ranks in (2, 4)}
    capped = ("veth, 8 × 1000 Mbit/s", "veth, 8 × 500 Mbit/s", "veth, 6 × 1000 + 2 × 250 Mbit/s")
    assert rows == ring | {("all_to_all", network, 4) for network in ("veth", *capped)} | {("all_to_all", "veth", 8)}
    assert len({cell.key for cell in found}) == len(found)
    assert len({cell.block for cell in found}) == len(rows)
    slow = [cell for cell in found if 50 in cell.classes_mbits]
    assert max(cell.size for cell in slow) == 16 * MIB
    assert {max(cell.size for cell in found if cell.block == name) for name in {cell.block for cell in found}} == {
        16 * MIB,
        256 * MIB,
    }


def test_only_ours_has_the_plugin_and_only_nccl_s_own_settings_are_tuned() -> None:
    for cell in (FREE, CAPPED):
        (default,) = _settings(cell, "nccl")
        assert default == {LIBRARY_VARIABLE: "n", "NCCL_NET_PLUGIN": "none", "NCCL_NET": "Socket"}
        every = _settings(cell, "tuned", BAGUA_NET_NSTREAMS="4")
        assert len(every) == 2, "both are read in every pair"
        for tuned in every:
            assert {**tuned, **default} == tuned
            assert "BAGUA_NET_NSTREAMS" not in tuned
        for name, library in (("ours", "p.so"), ("baseline", "b.so")):
            (found,) = _settings(cell, name, BAGUA_NET_NSTREAMS="4")
            assert found == {
                LIBRARY_VARIABLE: "n",
                "NCCL_NET_PLUGIN": library,
                "NCCL_NET": "BaguaNet",
                "BAGUA_NET_NSTREAMS": "4",
            }
    assert all("NCCL_SOCKET_SNDBUF" in tuned for tuned in _settings(FREE, "tuned"))
    assert all("NCCL_NSOCKS_PERTHREAD" in tuned for tuned in _settings(CAPPED, "tuned"))


def test_it_needs_an_nccl_for_every_side() -> None:
    without = replace(FILES, nccl=None)
    for name in FREE.heading.sides:
        assert sides.needs_nccl("S12", name)
        assert sides.obstacle(FREE, name, without) == "no NCCL is installed"
        assert sides.obstacle(FREE, name, FILES) == ""


@pytest.mark.parametrize(("op", "ranks", "share"), [("allreduce", 4, 1), ("all_to_all", 2, 1), ("all_to_all", 4, 0.75)])
def test_the_share_of_the_cable(op: str, ranks: int, share: float) -> None:
    """0.75: two ranks send two of their four blocks of S / 4 bytes across. That takes S / capacity, and the
    bus bandwidth is 3 / 4 S in that time."""
    assert replace(CAPPED, op=op, ranks=ranks).full_cable == share


def test_its_table() -> None:
    record = results.CellRecord(replace(CAPPED, op="all_to_all", ranks=4), 1.0)
    for side, choice, value in (("nccl", "", 0.25), ("tuned", "1 × 8", 0.5), ("ours", "", 0.6)):
        record.runs.append(results.Run(side, choice, value=value))
    settings: dict[str, Any] = {"congestion_control": "bbr", "nccl_version": "2.30.7", "plugin_version": "0.1.0"}
    settings |= {"pairs": 1, "plugin_settings": {}}
    computer = {"cpu": "a processor", "cores": 2, "memory_gib": 4, "kernel": "6.18"}
    stored = results.Results("2026-01-01T00:00:00+00:00", "transport", computer, settings, {record.cell.key: record})
    assert (
        "| all_to_all | veth, 8 × 1000 Mbit/s | 4 | 1 MiB | 0.250 | 0.500 | 1 × 8 | 0.600 | 2.40 | 1.20 | 80% |"
        in markdown.render(stored)
    )


@pytest.mark.gate
@needs_namespaces
@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the emulated GPU is tested on x86-64 only")
@pytest.mark.parametrize("op", variants("allreduce", nightly=["all_to_all"]))
@pytest.mark.parametrize("name", ["nccl", "tuned", "ours"])
def test_a_small_run(name: str, op: str, loops: Path, plugin: Path) -> None:
    files = sides.Files(loops, plugin, inspect(nccl_wheels.library("2.30.7")), loops.with_name("relay"))
    block = [replace(FREE, op=op, size=size) for size in (KIB, 64 * KIB)]
    effort = replace(QUICK, collective_rounds=1, collective_s=0.01)
    side, *_ = sides.candidates(block, name, effort, files, {})
    with namespaces.veth("reno") as hosts:
        (found,) = sides.read([side], hosts)
    assert [row.value > 0 for row in found] == [True, True]
