# SPDX-License-Identifier: MIT
"""The repair of streams as a model (tests/conformance/repair_model.py): every order of its events, and what it finds
where a part of the protocol is left out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.conformance.repair_model import Case, Violation, explore
from tests.support.tiers import variants

_ONE = Case((1, 1))
_TWO = Case((1, 1), streams=2)


@pytest.mark.parametrize(
    "case",
    variants(
        _ONE,
        gate=[_TWO],
        nightly=[
            Case((2,), resets=2),
            Case((1, 1), resets=2),
            Case((2, 1)),
            Case((2, 1), streams=2),
            Case((1, 1), streams=2, resets=2),
        ],
    ),
    ids=str,
)
def test_nothing_goes_wrong_in_any_order(case: Case) -> None:
    assert explore(case) > 1000


@pytest.mark.gate
@pytest.mark.parametrize(
    ("case", "what"),
    [
        (replace(_ONE, takes_back=False), "waits for ever"),
        (replace(_ONE, drains=False), "a position that cannot be"),
        (replace(_TWO, alone=False), "waits for ever"),
        (replace(_ONE, keeps=False), "sent again out of a request that is done"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_each_part_is_needed(case: Case, what: str) -> None:
    with pytest.raises(Violation, match=what):
        explore(case)
