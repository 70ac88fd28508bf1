# SPDX-License-Identifier: MIT
"""The trial of auto: who goes on, who wins."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle

import pytest

pytest.importorskip("torch")

from bagua_net.algorithms._trial import _ROUNDS, Trial

NAMES = ("exact", "half", "codes")


def turns(trial: Trial, times: Mapping[str, Sequence[float]]) -> list[str]:
    """Whose turn it was. Each turn takes the next two of the candidate's times."""
    endless: dict[str, Iterator[float]] = {name: cycle(seconds) for name, seconds in times.items()}
    taken = []
    while trial.now:
        taken.append(trial.now)
        trial.add([next(endless[trial.now]), next(endless[trial.now])])
    return taken


def test_steady_steps_need_one_round() -> None:
    trial = Trial(NAMES, 0.05)
    assert turns(trial, {"exact": [1.0], "half": [0.9], "codes": [0.8]}) == list(NAMES)
    assert trial.leader() == "codes"
    assert trial.seconds() == {"exact": 1.0, "half": 0.9, "codes": 0.8}


def test_steps_that_take_equally_long_need_one_round() -> None:
    trial = Trial(NAMES, 0.05)
    assert turns(trial, {name: [1.0] for name in NAMES}) == list(NAMES)
    assert trial.leader() == "exact"


@pytest.mark.parametrize(("seconds", "leader"), [(0.94, "half"), (0.96, "exact")])
def test_the_first_has_a_head_start(seconds: float, leader: str) -> None:
    trial = Trial(NAMES, 0.05)
    turns(trial, {"exact": [1.0], "half": [seconds], "codes": [1.0]})
    assert trial.leader() == leader


def test_only_those_that_overlap_with_the_leader_go_on() -> None:
    trial = Trial(NAMES, 0.05)
    taken = turns(trial, {"exact": [5.0, 6.0], "half": [1.0, 3.0], "codes": [2.0, 3.5]})
    assert taken == [*NAMES, *["half", "codes"] * (_ROUNDS - 1)]
    assert trial.leader() == "half"
    assert not {"exact"} & set(taken[3:])


def test_all_rounds_count() -> None:
    """The first one alone would say otherwise, and so would the last one."""
    trial = Trial(NAMES, 0.05)
    taken = turns(trial, {"exact": [19.0], "half": [1, 4, 1, 6, 2.5, 9, 1.5, 4], "codes": [2.9, 3.1]})
    assert len(taken) == 3 + 2 * 3
    assert trial.leader() == "codes"


def test_it_ends_as_soon_as_the_leader_is_alone() -> None:
    trial = Trial(NAMES, 0.05)
    taken = turns(trial, {"exact": [9.0], "half": [1.0, 3.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0], "codes": [2.0]})
    assert taken == [*NAMES, "half", "codes"]
    assert trial.leader() == "half"


def test_one_late_step_of_five_is_no_overlap() -> None:
    trial = Trial(NAMES, 0.05)
    for times in ([2.0] * 5, [1.0, 1.0, 7.0, 1.0, 1.0], [3.0] * 5):
        trial.add(times)
    assert trial.now == ""
    assert trial.leader() == "half"


def test_who_is_ruled_out_has_no_turn() -> None:
    trial = Trial(NAMES, 0.05)
    trial.add([1.0])
    trial.rule_out("half")
    assert turns(trial, {"codes": [0.5]}) == ["codes"]
    assert list(trial.seconds()) == ["exact", "codes"]
    trial = Trial(NAMES, 0.05)
    trial.add([1.0])
    trial.rule_out("half")
    trial.rule_out("codes")
    assert trial.now == ""
    assert trial.leader() == "exact"


def test_rounds_are_told_apart() -> None:
    trial = Trial(NAMES[:2], 0.05)
    assert not trial.tried_before
    trial.add([1.0, 3.0])
    assert not trial.tried_before
    trial.add([1.0, 3.0])
    assert trial.tried_before
