# SPDX-License-Identifier: MIT
"""The documented table of behaviours: every row has tests, and every test that it names exists."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

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


def _collected(tier: str) -> set[str]:
    """FILE::TEST of the tests of a tier, and FILE."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "--collect-only",
        "-q",
        "-p",
        "no:cacheprovider",
        "--tier",
        tier,
        "tests",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    names = [line.partition("[")[0].rpartition("/")[2] for line in done.stdout.splitlines() if "::" in line]
    return {*names, *(name.partition("::")[0] for name in names)}


@pytest.mark.gate
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed: half of the tests")
def test_every_behaviour_is_tested_before_a_change_is_merged() -> None:
    """The gate runs every scenario and every test in C."""
    collected = _collected("gate")

    def is_in_gate(name: str) -> bool:
        return name in SCENARIOS or name in collected or Path(name).suffix in (".c", ".h")

    assert [behaviour for behaviour, tests in _rows() if not any(map(is_in_gate, _NAME.findall(tests)))] == []
