# SPDX-License-Identifier: MIT
"""The list of mutants fits the code: each change can be made, and each test exists. `run.py` makes and runs them."""

from __future__ import annotations

import re

import pytest

from tests.mutants.mutants import ROOT, BadList, Replacement, read_all
from tests.support import collected

_SCENARIO = re.compile(r'^\t\{"(\w+)", ', re.MULTILINE)


def _scenarios() -> set[str]:
    files = (ROOT / "tests" / "conformance").glob("drive_contract_*.c")
    return {name for file in files for name in _SCENARIO.findall(file.read_text())}


def _exists(test: str) -> bool:
    if test.startswith("contract:"):
        return test.removeprefix("contract:").split()[0] in _scenarios()
    if "::" not in test:
        return (ROOT / "tests" / "unit" / f"{test}.c").is_file()
    file, _, name = test.partition("::")
    path = ROOT / file
    return path.is_file() and f"def {name.partition('[')[0]}(" in path.read_text()


def test_the_list_is_there() -> None:
    assert len(read_all()) > 30


def test_every_mutant_fits() -> None:
    for mutant in read_all():
        changed = mutant.files(ROOT)
        assert all(text != path.read_text() for path, text in changed.items()), f"{mutant.name} changes nothing"
        assert [test for test in mutant.red + mutant.nightly if not _exists(test)] == [], mutant.name


@pytest.mark.gate
@pytest.mark.xdist_group("collection")
def test_what_is_red_in_the_gate_is_in_the_gate() -> None:
    in_gate = collected.of_tier("gate")
    assert [
        f"{mutant.name}: {test}"
        for mutant in read_all()
        for test in mutant.red
        if "::" in test and not any(each == test or each.startswith(f"{test}[") for each in in_gate)
    ] == []


def test_a_change_that_does_not_fit_is_refused() -> None:
    change = Replacement("file", ["once"], ["twice"])
    assert change.apply("only once\n") == "only twice\n"
    for text in ("never\n", "once and once\n"):
        with pytest.raises(BadList, match="instead of once"):
            change.apply(text)
