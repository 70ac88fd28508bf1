# SPDX-License-Identifier: MIT
"""The documented table of behaviours: every row has tests, and every test that it names exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.conformance.test_contract import SCENARIOS
from tests.support import collected

ROOT = Path(__file__).parents[2]
#: The document with the table, and the table's heading there.
DOCUMENT = ROOT / "docs" / "dev" / "conformance.md"
HEADING = "## Behaviours and their tests"
FIELD = DOCUMENT.with_name("field.md")

_NAME = re.compile(r"`([^`]+)`")


def _rows() -> list[tuple[str, str]]:
    section = DOCUMENT.read_text().split(HEADING)[1]
    rows = [line.strip("|\n").split("|") for line in section.splitlines() if line.startswith("|")]
    return [(row[0].strip(), row[1].strip()) for row in rows[2:]]


def _exists(name: str) -> bool:
    """A scenario, a file below tests/, plugin/, host/ or common/, or FILE::TEST."""
    if name in SCENARIOS:
        return True
    file, _, test = name.partition("::")
    found = [path for folder in ("tests", "plugin", "host", "common") for path in (ROOT / folder).rglob(file)]
    return any(not test or f"def {test}(" in path.read_text() for path in found)


def test_the_table_is_there() -> None:
    assert len(_rows()) > 30


def test_every_behaviour_has_tests_that_exist() -> None:
    for behaviour, tests in _rows():
        names = _NAME.findall(tests)
        assert names, f"no test for: {behaviour}"
        assert [name for name in names if not _exists(name)] == [], behaviour


def test_what_shows_the_faults_of_the_field_exists() -> None:
    named = [name for name in _NAME.findall(FIELD.read_text()) if name.startswith("test_")]
    assert len(named) > 20
    assert [name for name in named if not _exists(name)] == []


def test_every_scenario_is_in_the_table() -> None:
    named = {name for _, tests in _rows() for name in _NAME.findall(tests)}
    assert set(SCENARIOS) - named == set()


#: Named tests that run only at night: the gate has another test, or other variants, of their behaviour.
_AT_NIGHT = {
    "test_chaos.py::test_training_notices_nothing",
    "test_contract.py::test_behaviour_with_workers",
    "test_encryption.py::test_a_processor_without_instructions_for_aes",
    "test_matrix.py::test_cells_of_many_ranks",
    "test_peers.py::test_a_firewall_that_stops_the_job",
    "test_peers.py::test_a_rank_or_its_host_dies",
    "test_proxy.py::test_a_message_that_is_cut_off_is_an_error_or_arrives",
    "test_repairs.py::test_a_link_that_is_cut_for_a_minute",
    "test_restarts.py::test_a_file_that_an_earlier_run_left",
    "test_restarts.py::test_lives_of_torchrun",
    "test_restarts.py::test_lives_of_two_agents",
    "test_scaling.py::test_one_stream_without_caps",
    "test_scaling.py::test_streams_that_carry_no_more_are_closed",
    "test_silence.py::test_a_partition_behind_a_shut_window",
    "test_silence.py::test_a_partition_while_sends_are_outstanding",
    "test_silence.py::test_without_a_limit_a_partition_ends",
    "test_starts.py::test_hosts_whose_addresses_are_not_those_of_their_cards",
    "test_transport.py::test_streams_that_join_while_others_move_data",
}


@pytest.mark.gate
@pytest.mark.xdist_group("collection")
def test_every_behaviour_is_tested_before_a_change_is_merged() -> None:
    """The gate runs every scenario and every test in C, and a test of each row that is not one of those at night."""
    ids = [node.partition("[")[0].rpartition("/")[2] for node in collected.of_tier("gate")]
    in_gate = {*SCENARIOS, *ids, *(name.partition("::")[0] for name in ids)}
    rows = [
        (behaviour, {name for name in _NAME.findall(tests) if Path(name).suffix not in (".c", ".h")}, tests)
        for behaviour, tests in _rows()
    ]
    assert {name for _, names, _ in rows for name in names if name not in in_gate} == _AT_NIGHT
    only_python = [(behaviour, names) for behaviour, names, tests in rows if len(names) == len(_NAME.findall(tests))]
    assert [behaviour for behaviour, names in only_python if names <= _AT_NIGHT] == []
