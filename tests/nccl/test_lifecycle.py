# SPDX-License-Identifier: MIT
"""Communicators of real NCCL over the plugin: many at a time, made from each other, one after another, and aborted.
Every element is right, and no descriptor and no thread is left."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from bagua_net import plugin_path
from bagua_net._activation import environment
from tests.nccl import nccl_job, releases

pytestmark = pytest.mark.gate

_RANKS = 3
#: The scenes of lifecycle_rank.py, and the first release that has the function.
SCENES = {
    "interleaved": (2, 18),
    "destroyed_beside_busy": (2, 18),
    "several_streams": (2, 18),
    "grouped": (2, 18),
    "threads": (2, 18),
    "split": (2, 18),
    "shrink": (2, 27),
    "revoke": (2, 28),
    "finalized": (2, 18),
    "registered": (2, 19),
    "not_blocking": (2, 18),
}
#: A mapping for each connection would be many more.
_MAPPINGS = 8


class Ranks:
    """The ranks of a job, which one scene after another uses; after a failure, those of a new one."""

    def __init__(self, version: str, directory: Path) -> None:
        self._version = version
        self._directory = directory
        self._stack = ExitStack()
        self._job: nccl_job.Job | None = None

    def play(self, scene: str, **options: Any) -> list[Any]:
        """What the scene returns on each rank.

        Raises:
            JobFailed: a rank has failed.
        """
        if self._job is None:
            self._job = self._stack.enter_context(start(self._version, self._directory))
        job, self._job = self._job, None
        replies = job.ask({"do": scene, **options})
        self._job = job
        assert [reply["left"] for reply in replies] == [{}] * _RANKS
        return [reply["value"] for reply in replies]

    def close(self) -> None:
        with self._stack:
            if self._job is not None:
                self._job.finish()


def start(version: str, directory: Path, ranks: int = _RANKS, **options: Any) -> Any:
    settings = {**releases.settings(version), "MALLOC_ARENA_MAX": "2", **options.pop("settings", {})}
    network = options.pop("network", nccl_job.BAGUA)
    return nccl_job.start("lifecycle_rank", ranks, version, network, directory, settings=settings, **options)


@pytest.fixture(scope="module", params=releases.FEW)
def ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Ranks]]:
    made = Ranks(request.param, tmp_path_factory.mktemp("lives"))
    yield request.param, made
    made.close()


@pytest.mark.parametrize("scene", SCENES)
def test_communicators(scene: str, ranks: tuple[str, Ranks]) -> None:
    version, playing = ranks
    if releases.number(version) < SCENES[scene]:
        pytest.skip(f"NCCL {version} cannot {scene}")
    assert playing.play(scene) == [0] * _RANKS


@pytest.mark.nightly
def test_ten_lives(ranks: tuple[str, Ranks]) -> None:
    version, playing = ranks
    for lives in playing.play("lives", times=10, abort=releases.aborts(version)):
        assert [life["wrong"] for life in lives] == [0] * 10
        assert [life["threads"] for life in lives] == [lives[0]["threads"]] * 10
        assert [life["descriptors"] for life in lives] == [lives[0]["descriptors"]] * 10
        later = [life["mappings"] for life in lives[3:]]
        assert max(later) - min(later) < _MAPPINGS


@pytest.mark.parametrize("version", releases.FEW)
def test_a_process_ends_while_calls_are_under_way(version: str, tmp_path: Path) -> None:
    with start(version, tmp_path, ranks=2) as job:
        assert [reply["value"] for reply in job.ask({"do": "leave_busy"})] == ["busy", "busy"]
        job.finish()


@pytest.mark.parametrize("version", releases.FEW)
def test_each_communicator_has_the_network_that_it_names(version: str, tmp_path: Path) -> None:
    """With the settings for a choice; that without a name has the plugin's, because NCCL asks plugins first."""
    names = ["Socket", "BaguaNet", None]
    settings = environment.settings(plugin_path(), takes_path=True, per_communicator=True)
    del settings["NCCL_NET_PLUGIN"]  # by nccl_job, as this release takes it
    with start(version, tmp_path, ranks=2, network=nccl_job.CHOSEN, settings=settings) as job:
        assert [reply["value"] for reply in job.ask({"do": "networks", "names": names})] == [0, 0]
        job.finish()
    for rank in range(2):
        used = re.findall(r"Using network (\w+)", (tmp_path / f"nccl-{rank}.log").read_text(errors="replace"))
        assert used[-3:] == ["Socket", "BaguaNet", "BaguaNet"]


@pytest.mark.parametrize("version", dict.fromkeys([releases.FORGETFUL, *releases.FEW]))
def test_a_second_communicator_after_the_last_one(version: str, tmp_path: Path) -> None:
    """With the settings that turn the plugin on, and no other one."""
    settings = dict.fromkeys(releases.settings(version), "0") | environment.settings(plugin_path(), takes_path=True)
    del settings["NCCL_NET_PLUGIN"]  # by nccl_job, as this release takes it
    with start(version, tmp_path, ranks=2, settings=settings) as job:
        assert [reply["value"] for reply in job.ask({"do": "finalized"})] == [0, 0]


def test_a_release_that_forgets_the_plugin(tmp_path: Path) -> None:
    """Why the settings have a reference count."""
    version = releases.FORGETFUL
    settings = dict.fromkeys(releases.settings(version), "0")
    failing = pytest.raises(nccl_job.JobFailed, match="Failed to initialize any NET plugin")
    with start(version, tmp_path, ranks=2, settings=settings) as job, failing:
        job.ask({"do": "finalized"})
