# SPDX-License-Identifier: MIT
"""The documented table of behaviours: every row has tests, and every test that it names exists."""

from __future__ import annotations

import re
from pathlib import Path

from tests.conformance.test_contract import SCENARIOS

ROOT = Path(__file__).parents[2]
#: The document with the table, and the table's heading there.
DOCUMENT = ROOT / "docs" / "conformance.md"
HEADING = "## Behaviours and their tests"

_NAME = re.compile(r"`([^`]+)`")


def _rows() -> list[tuple[str, str]]:
    section = DOCUMENT.read_text().split(HEADING)[1]
    rows = [line.strip("|\n").split("|") for line in section.splitlines() if line.startswith("|")]
    return [(row[0].strip(), row[1].strip()) for row in rows[2:]]


def _exists(name: str) -> bool:
    """A scenario, a file below tests/ or plugin/, or FILE::TEST."""
    if name in SCENARIOS:
        return True
    file, _, test = name.partition("::")
    found = [path for folder in ("tests", "plugin") for path in (ROOT / folder).rglob(file)]
    return any(not test or f"def {test}(" in path.read_text() for path in found)


def test_the_table_is_there() -> None:
    assert len(_rows()) > 30


def test_every_behaviour_has_tests_that_exist() -> None:
    for behaviour, tests in _rows():
        names = _NAME.findall(tests)
        assert names, f"no test for: {behaviour}"
        assert [name for name in names if not _exists(name)] == [], behaviour


def test_every_scenario_is_in_the_table() -> None:
    named = {name for _, tests in _rows() for name in _NAME.findall(tests)}
    assert set(SCENARIOS) - named == set()
