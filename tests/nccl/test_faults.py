# SPDX-License-Identifier: MIT
"""Real NCCL over the plugin when a rank or the network fails: the error arrives with its code, silence is no error, an
abort returns, and nothing is left. ``fault_table.py`` compares with NCCL's own network, for more releases."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.nccl import faults, nccl_job, releases
from tests.nccl.faults import INVALID_USAGE, NOTHING, REMOTE_ERROR, Finding, Place

pytestmark = pytest.mark.gate

#: An error arrives within a second; so much more is left to a busy machine.
SECONDS = 20.0


def _place(version: str, directory: Path, end_seconds: float = 60.0) -> Place:
    if not releases.aborts(version):
        end_seconds = 5.0
    return Place(version, nccl_job.BAGUA, directory, end_seconds)


def _check_error(finding: Finding, version: str, code: int = REMOTE_ERROR) -> None:
    """The error has arrived, with its code and soon, where this release reports any; it is in the log in each."""
    assert finding.code == (code if releases.reports_errors(version) else NOTHING)
    if releases.reports_errors(version):
        assert finding.seconds < SECONDS
    assert not finding.done


def _check_end(finding: Finding, version: str) -> None:
    """The abort has returned, its kernels have ended, and nothing is left, where this release's aborts return."""
    if not releases.aborts(version):
        assert finding.end is None
        return
    assert (finding.end, finding.stream) == (0, 0)
    assert not finding.left


@pytest.mark.parametrize("version", releases.FEW)
def test_a_rank_is_killed(version: str, tmp_path: Path) -> None:
    (finding,) = faults.killed(_place(version, tmp_path))
    _check_error(finding, version)
    # Once for each connection, although some releases test a failed one again and again.
    assert 1 <= finding.log.count(" broke while ") <= 8
    _check_end(finding, version)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "settings", [{"BAGUA_NET_THREADS": "2", "BAGUA_NET_MIN_NSTREAMS": "4"}, {"BAGUA_NET_ZEROCOPY": "1"}]
)
def test_a_rank_is_killed_with_workers_or_without_copies(settings: dict[str, str], tmp_path: Path) -> None:
    (finding,) = faults.killed(Place(releases.ONE, nccl_job.BAGUA, tmp_path, settings=settings))
    _check_error(finding, releases.ONE)
    _check_end(finding, releases.ONE)


def test_each_rank_learns_of_it_when_the_one_before_it_aborts(tmp_path: Path) -> None:
    found = faults.killed_of_four(_place(releases.ONE, tmp_path))
    assert len(found) == (3 if releases.aborts(releases.ONE) else 1)
    for finding in found:
        assert finding.code == (REMOTE_ERROR if releases.reports_errors(releases.ONE) else NOTHING)
        _check_end(finding, releases.ONE)


def test_a_stopped_rank_is_no_error_and_goes_on(tmp_path: Path) -> None:
    (finding,) = faults.stopped(_place(releases.ONE, tmp_path))
    assert (finding.code, finding.done, finding.wrong) == (NOTHING, False, 0)
    assert "broke" not in finding.log
    assert (finding.end, finding.stream, finding.left) == (0, 0, {})


def test_an_abort_beside_a_stopped_rank(tmp_path: Path) -> None:
    (finding,) = faults.stopped_for_good(_place(releases.ONE, tmp_path))
    assert finding.code == NOTHING
    _check_end(finding, releases.ONE)


@pytest.mark.parametrize("version", releases.FEW)
def test_a_rank_aborts(version: str, tmp_path: Path) -> None:
    found = faults.aborts(_place(version, tmp_path))
    for finding in found:
        _check_end(finding, version)
    for finding in found[1:]:
        _check_error(finding, version)


def test_a_rank_that_calls_too_late(tmp_path: Path) -> None:
    waited, *late = faults.does_not_call(_place(releases.ONE, tmp_path))
    assert waited.code == NOTHING
    for finding in late:
        _check_error(finding, releases.ONE)
    for finding in (waited, *late):
        _check_end(finding, releases.ONE)


@pytest.mark.parametrize("version", releases.FEW)
def test_a_message_that_is_too_large_is_an_error_on_both_sides(version: str, tmp_path: Path) -> None:
    sender, receiver = faults.calls_differ(_place(version, tmp_path))
    _check_error(sender, version, REMOTE_ERROR)
    _check_error(receiver, version, INVALID_USAGE)
    assert "is 1048576 bytes long, but the receive posted for it" in receiver.log
    for finding in (sender, receiver):
        _check_end(finding, version)


def test_a_missing_rank(tmp_path: Path) -> None:
    """What is left are sockets of NCCL's bootstrap, with each network; the plugin has none yet."""
    for finding in faults.missing(_place(releases.ONE, tmp_path)):
        assert (finding.code, finding.end) == (faults.IN_PROGRESS, 0)
        assert not finding.left.keys() - {"socket:", "threads"}


def test_a_rank_is_killed_while_it_connects(tmp_path: Path) -> None:
    """Up to 2.27, NCCL never closes what it listens on, and the plugin keeps that."""
    (finding,) = faults.killed_while_connecting(_place(releases.ONE, tmp_path))
    assert (finding.end, finding.stream) == (0, 0)
    if releases.number(releases.ONE) >= (2, 28):
        assert not finding.left


# ---- the network ----


def test_a_link_that_comes_back_is_no_error(tmp_path: Path) -> None:
    for finding in faults.cut(_place(releases.ONE, tmp_path)):
        assert (finding.code, finding.done, finding.wrong) == (NOTHING, False, 0)
        assert (finding.end, finding.stream, finding.left) == (0, 0, {})


@pytest.mark.parametrize(
    ("fault", "code"), [(faults.cut_for_good, NOTHING), (faults.rejected, REMOTE_ERROR)], ids=["down", "reset"]
)
def test_an_abort_without_a_network(fault: Callable[[Place], list[Finding]], code: int, tmp_path: Path) -> None:
    """What a sender owes is tried for BAGUA_NET_KEEPALIVE, also after the abort."""
    place = dataclasses.replace(_place(releases.ONE, tmp_path), settings={"BAGUA_NET_KEEPALIVE": "5"})
    for finding in fault(place):
        assert finding.code == (code if releases.reports_errors(releases.ONE) else NOTHING)
        _check_end(finding, releases.ONE)


# ---- afterwards ----


@pytest.mark.parametrize("version", [version for version in releases.FEW if releases.number(version) >= (2, 27)])
def test_the_other_ranks_shrink(version: str, tmp_path: Path) -> None:
    """Only 2.27, which does not report the error, goes on; later ones refuse a communicator that has one."""
    found = faults.shrinks(_place(version, tmp_path))
    assert found == ([(REMOTE_ERROR, 0)] if releases.reports_errors(version) else [(0, 0), (0, 0)])
