# SPDX-License-Identifier: MIT
"""Real NCCL on emulated GPUs, over the plugin and over its own sockets: every operation with every type, reduction,
algorithm and protocol, and every byte of the results. Over sockets it is a control: where those are wrong, the
emulation is.

These are the quick cells of a few releases; ``matrix_whole.py`` has all cells of all releases.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("numpy", reason="numpy is not installed")

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.nccl import matrix_jobs, matrix_log, nccl_job
from tests.nccl.matrix_cells import (
    DEFAULT,
    GROUP,
    MOVING,
    POINT_TO_POINT,
    QUICK,
    REDUCING,
    SETTINGS,
    Cell,
    Setting,
    absent,
    plan,
    refused,
)
from tests.nccl.matrix_values import REDUCTIONS, SUM, TYPES
from tests.nccl.releases import CHOSEN, NEWEST
from tests.support import nccl_wheels
from tests.support.tiers import variants

#: A first run downloads wheels, and the machine may be busy.
pytestmark = pytest.mark.timeout(900)

#: With many ranks on few processors a cell takes long: one setting for each algorithm and each protocol.
_OF_MANY = (DEFAULT, Setting("Ring", "LL128"), Setting("Tree", "LL"), Setting("PAT", "Simple"))
_MANY = 8
_RANDOM_RANKS = 3
_MOST_TEXTS = 20
_REPEATED = 1000


def _check(row: matrix_jobs.Row) -> None:
    print(f"{row.cells} cells in {row.seconds:.0f} s", *row.once, sep="\n  once: ")
    assert row.cells > 0
    assert not row.wrong, "\n".join(row.wrong[:_MOST_TEXTS])


#: Three ranks only with the newest release, which saves a minute.
_OVER_BAGUA = [
    (version, nccl_job.BAGUA, size) for version in CHOSEN for size in (2, 3, 4) if size != 3 or version == NEWEST
]
_OVER_SOCKETS = [(NEWEST, nccl_job.SOCKET, size) for size in (2, 3, 4)]
#: The newest release and the oldest.
_GATE = [(NEWEST, nccl_job.BAGUA, 3), (CHOSEN[0], nccl_job.BAGUA, 2)]


@pytest.mark.parametrize(
    ("version", "network", "size"),
    variants(gate=_GATE, nightly=[row for row in _OVER_BAGUA + _OVER_SOCKETS if row not in _GATE]),
)
def test_cells(version: str, network: str, size: int, tmp_path: Path) -> None:
    _check(matrix_jobs.run(version, network, size, QUICK, tmp_path))


@pytest.mark.nightly
@pytest.mark.parametrize("version", CHOSEN)
def test_cells_of_many_ranks(version: str, tmp_path: Path) -> None:
    _check(matrix_jobs.run(version, nccl_job.BAGUA, _MANY, QUICK, tmp_path, settings=_OF_MANY))


def test_a_setting_has_every_operation_type_and_reduction() -> None:
    for setting in SETTINGS:
        for op, cells in plan(NEWEST, setting, 3, QUICK).items():
            assert cells
            for dtype, reduction in ((dtype, one) for dtype in TYPES for one in REDUCTIONS if op in REDUCING):
                reason = absent(NEWEST, setting, Cell(op, dtype, reduction, 1))
                assert reason or any(cell.dtype == dtype and cell.reduction == reduction for cell in cells)
            for dtype in TYPES if op in (*MOVING, *POINT_TO_POINT) else ():
                assert any(cell.dtype == dtype for cell in cells)


@pytest.mark.gate
@pytest.mark.parametrize("version", CHOSEN)
def test_cells_that_are_left_out_do_not_exist(version: str, tmp_path: Path) -> None:
    """NCCL refuses them, or runs something else than was asked for."""
    with nccl_job.start("matrix_rank", 2, version, nccl_job.SOCKET, tmp_path) as job:
        ranks = matrix_jobs.Ranks(job)
        for reason, (setting, cell) in refused(version, 2).items():
            ranks.open(setting)
            errors = ranks.refusals(cell)
            ran = matrix_log.choices(ranks.log()).get(matrix_log.FUNCTIONS[cell.op], set())
            assert all(errors) or (not any(errors) and (setting.algorithm, setting.protocol) not in ran), reason
            ranks.close()
        job.finish()


def test_a_difference_is_found(tmp_path: Path) -> None:
    """A rank that sends other data than the others expect, and expects other data than they send."""
    cell = Cell("all_gather", "uint8", "", 1000)
    version = nccl_wheels.VERSIONS[-1]  # which a quick run has
    with nccl_job.start("matrix_rank", 2, version, nccl_job.BAGUA, tmp_path) as job:
        ranks = matrix_jobs.Ranks(job)
        ranks.open(DEFAULT)
        assert not ranks.run([cell])
        for rank, other in enumerate((cell, replace(cell, first=1))):
            job.send({"cells": [other.to_json()]}, [rank])
        assert [len(texts) for texts in job.receive()] == [1, 1]
        ranks.close()
        job.finish()


@pytest.mark.nightly
@pytest.mark.parametrize("protocol", ["LL", "LL128"])
def test_lines_of_small_messages(protocol: str, tmp_path: Path) -> None:
    """NCCL polls the flag behind a line's data while the plugin copies small messages, in the order of their bytes."""
    sizes = {"all_reduce": (60, 500, 1000), "all_gather": (60, 250), "broadcast": (250,)}
    with nccl_job.start("matrix_rank", 3, NEWEST, nccl_job.BAGUA, tmp_path) as job:
        ranks = matrix_jobs.Ranks(job)
        ranks.open(Setting("Ring", protocol))
        for op, counts in sizes.items():
            cell = Cell(op, "float32", SUM if op in REDUCING else "")
            for count in counts:
                wrong = ranks.run(replace(cell, count=count, first=97 * number) for number in range(_REPEATED))
                assert not wrong, next(iter(wrong.values()))
        ranks.close()
        job.finish()


# ---- any order of any operations ----


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[matrix_jobs.Ranks]:
    """Ranks with a communicator, which all examples share: what one of them leaves behind, others would meet."""
    with nccl_job.start("matrix_rank", _RANDOM_RANKS, NEWEST, nccl_job.BAGUA, tmp_path_factory.mktemp("random")) as job:
        made = matrix_jobs.Ranks(job)
        made.open(DEFAULT)
        yield made
        made.close()
        job.finish()


@st.composite
def _cells(draw: st.DrawFn) -> Cell:
    op = draw(st.sampled_from((*REDUCING, *MOVING, *POINT_TO_POINT)))
    possible = [dtype for dtype in TYPES if not absent(NEWEST, DEFAULT, Cell(op, dtype, SUM))]
    return Cell(
        op,
        draw(st.sampled_from(possible)),
        draw(st.sampled_from(REDUCTIONS)) if op in REDUCING else "",
        draw(st.one_of(st.integers(0, 300), st.integers(0, 40_000))),
        draw(st.integers(0, _RANDOM_RANKS - 1)),
        draw(st.booleans()) if op not in POINT_TO_POINT else False,
        draw(st.integers(0, 3)),
        draw(st.integers(0, 3)),
        draw(st.integers(0, 10_000)),
    )


_SEQUENCES = st.lists(
    st.one_of(_cells(), st.lists(_cells(), min_size=2, max_size=5).map(lambda parts: Cell(GROUP, parts=tuple(parts)))),
    min_size=1,
    max_size=12,
)


@pytest.mark.gate
@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(cells=_SEQUENCES)
def test_any_sequence(cells: list[Cell], ranks: matrix_jobs.Ranks) -> None:
    assert not ranks.run(cells)
