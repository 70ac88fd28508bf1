# SPDX-License-Identifier: MIT
"""Three tiers of tests: "quick" shows that the product works here, "gate" is what a change must pass, "nightly" is all.

    pytest                  # quick
    pytest --tier gate      # quick and gate
    pytest --tier nightly   # all

A test is in the quick tier unless a mark says otherwise: its own, or else that of its module. A value of a parameter
may move it to a later tier:

    pytestmark = pytest.mark.gate                      # the tests of this file

    @pytest.mark.quick                                 # but this one; or @pytest.mark.nightly
    @pytest.mark.parametrize("ranks", variants(3, nightly=[2, 4]))
    def test_something(ranks): ...

A run can leave out what another one has just passed:

    PYTEST_ADDOPTS="--record-passed=FILE" pytest
    pytest --tier gate --without-passed=FILE

A test that the command line names by its node id runs whatever its tier, as long as no ``--tier`` is given.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

TIERS = ("quick", "gate", "nightly")
#: How many tests were left out for their tier, where that leaves none.
LATER = pytest.StashKey[int]()


def variants(*usual: Any, gate: Iterable[Any] = (), nightly: Iterable[Any] = ()) -> list[Any]:
    """Values for ``pytest.mark.parametrize``, or for the ``params`` of a fixture: the usual ones run with their test,
    the others not before their tier.

    Where there are several arguments, a value is a tuple of them. A ``pytest.param`` keeps its id and marks.
    """
    return [
        *usual,
        *(_marked(value, pytest.mark.gate) for value in gate),
        *(_marked(value, pytest.mark.nightly) for value in nightly),
    ]


def thirds(values: Iterable[Any], *turns: int) -> list[Any]:
    """Every third value, from the turn (0 to 2) on, is in the gate, and the others at night: several tests of the same
    values share these out among them."""
    every = list(values)
    gate = [value for turn in turns for value in every[turn::3]]
    return variants(gate=gate, nightly=[value for value in every if value not in gate])


def _marked(value: Any, mark: pytest.MarkDecorator) -> Any:
    if hasattr(value, "marks") and hasattr(value, "values"):  # a pytest.param
        return pytest.param(*value.values, id=value.id, marks=[*value.marks, mark])
    return pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=mark)


def tier_of(item: pytest.Item) -> str:
    """The first tier in which it runs: that of its own mark, or else of the nearest node around it; or a later one that
    a value of its parameters has."""
    values = [mark for mark in getattr(getattr(item, "callspec", None), "marks", ()) if mark.name in TIERS]
    tiers = [mark.name for mark in values]
    for node in reversed(item.listchain()):
        own = [mark.name for mark in node.own_markers if mark.name in TIERS and mark not in values]
        if own:
            tiers.append(max(own, key=TIERS.index))
            break
    return max(tiers, key=TIERS.index, default=TIERS[0])


def register(parser: pytest.Parser) -> None:
    """The option, for pytest_addoption."""
    parser.addoption("--tier", choices=TIERS, help="run the tests up to this tier; default: quick")
    parser.addoption("--record-passed", type=Path, metavar="FILE", help="write there which tests have passed")
    parser.addoption("--without-passed", type=Path, metavar="FILE", help="leave out the tests of such a file")


def declare(config: pytest.Config) -> None:
    """The marks, for pytest_configure."""
    for tier in TIERS:
        config.addinivalue_line("markers", f"{tier}: runs from `pytest --tier {tier}` on")
    config.addinivalue_line("markers", "alone: what it sees depends on how fast data moves, so nothing runs beside it")


def chosen(config: pytest.Config) -> str:
    """The tier of this run."""
    return config.getoption("--tier") or TIERS[0]


def select(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselects what is of a later tier, for pytest_collection_modifyitems."""
    last = TIERS.index(chosen(config))
    named = () if config.getoption("--tier") else tuple(name for name in map(str, config.args) if "::" in name)
    kept: list[pytest.Item] = []
    left_out: list[pytest.Item] = []
    before = config.getoption("--without-passed")
    passed = set(before.read_text().splitlines()) if before else set()
    for item in items:
        runs = TIERS.index(tier_of(item)) <= last or any(_names(name, item) for name in named)
        (kept if runs and item.nodeid not in passed else left_out).append(item)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = kept
    config.stash[LATER] = len(left_out) if not kept else 0


def record(config: pytest.Config) -> None:
    """Which tests have passed, for ``--record-passed`` and pytest_terminal_summary."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None and (path := config.getoption("--record-passed")):
        path.write_text("".join(f"{report.nodeid}\n" for report in reporter.stats.get("passed", ())))


def _names(argument: str, item: pytest.Item) -> bool:
    """Does it name this test, or all of its parameters?"""
    file, _, test = argument.partition("::")
    own = item.nodeid.partition("::")[2]
    same_file = (item.config.invocation_params.dir / file).resolve() == item.path
    return same_file and (own == test or own.startswith((f"{test}[", f"{test}::")))
