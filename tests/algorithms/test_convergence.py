# SPDX-License-Identifier: MIT
"""Accuracy against exact averages, in a small form: few steps, one pair of runs for a task and a backend.

A pair starts from the same weights and sees the same data. ``python3 -m benchmarks convergence`` is the whole form.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import mean

import pytest

from bagua_net.algorithms import Auto
from bagua_net.algorithms._registry import ALGORITHMS
from tests.algorithms.convergence import ROWS, Row, Run, Trained, trained
from tests.algorithms.tasks import digits_file
from tests.support.ranks import Ranks

pytestmark = pytest.mark.nightly

RUNS = {
    "digits": (Run("digits", "bagua_net", 0, 120), Run("digits", "gloo", 1, 120)),
    "characters": (Run("characters", "bagua_net", 2, 80),),
}
Train = Callable[[Row, Run], Trained]


@pytest.fixture(scope="module")
def ended() -> dict[tuple[Row, Run], Trained]:
    """The runs so far: those with exact averages serve many algorithms."""
    return {}


@pytest.fixture
def train(four: Ranks, ended: dict[tuple[Row, Run], Trained]) -> Train:
    def train(row: Row, run: Run) -> Trained:
        if (row, run) not in ended:
            ended[row, run] = trained(four, row, run)
        return ended[row, run]

    return train


def _runs(task: str) -> tuple[Run, ...]:
    if task == "digits" and digits_file() is None:
        pytest.skip("scikit-learn, which has the digits, is not installed")
    return RUNS[task]


def _gained(train: Train, row: Row, task: str) -> float:
    """Points of accuracy against exact averages, in the mean over the pairs."""
    return mean(train(row, run).accuracy - train(row.exact(), run).accuracy for run in _runs(task))


@pytest.mark.parametrize("task", RUNS)
@pytest.mark.parametrize("row", [row for row in ROWS if row.small], ids=lambda row: row.label)
def test_an_algorithm_trains_as_well_as_exact_averages(train: Train, row: Row, task: str) -> None:
    assert _gained(train, row, task) >= -row.points
    ended = [train(row, run) for run in _runs(task)]
    assert all(each.megabytes > 0 for each in ended), "the algorithm did not take part"
    assert not row.equal or all(each.equal for each in ended), "the ranks differ"


def test_every_algorithm_has_a_row() -> None:
    """Except that of auto, which goes on with one of the others."""
    have = {ALGORITHMS[row.algorithm] for row in ROWS} | {Auto}
    missing = [name for name, made in ALGORITHMS.items() if made not in have]
    assert missing == []


# ---- controls ----


@pytest.mark.parametrize(
    ("control", "task", "points"),
    [
        ("alone", "digits", 0.5),
        ("alone", "characters", 0.5),
        ("one range", "characters", 0.5),
        ("no outer step", "digits", 1.0),
    ],
)
def test_a_defect_costs_more_than_the_bound(train: Train, control: str, task: str, points: float) -> None:
    """points: of the row of the algorithm without the defect."""
    row = Row(control, control, points=points)
    assert _gained(train, row, task) < -row.points


def test_ranks_that_do_not_decode_what_they_send_are_seen_to_differ(train: Train) -> None:
    assert not train(Row("own share", "own share"), RUNS["characters"][0]).equal
