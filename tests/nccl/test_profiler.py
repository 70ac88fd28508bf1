# SPDX-License-Identifier: MIT
"""A profiler plugin of real NCCL sees each message of the plugin, from its post to its end, below the step of NCCL that
it belongs to."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.nccl import nccl_job, releases
from tests.support.tiers import variants

pytestmark = pytest.mark.gate

_SOURCE = Path(__file__).with_name("profiler.c")
_ROOT = _SOURCE.parents[2]
#: Of four bytes each. In a ring of two, a rank sends as many as a buffer has.
_COUNTS = [1_000, 70_000, 1_500_000]
_TIMES = 2
_RELEASES = variants(releases.NEWEST, nightly=("2.28.9", "2.29.7", "2.30.7"))
#: Kinds of events (nccl_profiler.h): of a network, and of a collective.
_NETWORK, _COLLECTIVE = 1 << 7, 1 << 1


@pytest.fixture
def profiler(tmp_path: Path) -> Path:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    made = tmp_path / "libnccl-profiler-test.so"
    options = ["-shared", "-fPIC", "-std=c17", f"-I{_ROOT}"]
    subprocess.run([compiler, *options, "-o", str(made), str(_SOURCE)], check=True, timeout=60)
    return made


def _seen(
    profiler: Path, directory: Path, version: str, events: int, tasks: list[dict[str, Any]], **settings: str
) -> list[dict[str, int]]:
    """What the profiler of each of two ranks was told."""
    told = [directory / f"profile-{rank}" for rank in range(2)]
    every = {
        **releases.settings(version),
        "NCCL_PROFILER_PLUGIN": str(profiler),
        "BNET_TEST_EVENTS": str(events),
        "BAGUA_NET_MIN_NSTREAMS": "4",
        **settings,
    }
    each = [{"BNET_TEST_PROFILE": str(path)} for path in told]
    with nccl_job.start("traffic_rank", 2, version, nccl_job.BAGUA, directory, settings=every, each=each) as job:
        for task in tasks:
            assert job.ask(task) == [0, 0]
        job.finish()
    return [{name: int(value) for name, value in map(str.split, path.read_text().splitlines())} for path in told]


@pytest.mark.parametrize("version", _RELEASES)
@pytest.mark.parametrize("threads", ["0", "1"])
def test_each_message_is_an_event(threads: str, version: str, profiler: Path, tmp_path: Path) -> None:
    settings = {"NCCL_ALGO": "Ring", "NCCL_PROTO": "Simple", "BAGUA_NET_THREADS": threads}
    sums = {"do": "sums", "counts": _COUNTS, "times": _TIMES}
    for seen in _seen(profiler, tmp_path, version, _NETWORK, [sums], **settings):
        assert seen["sent"] == sum(_COUNTS) * 4 * _TIMES
        assert seen["received"] >= seen["sent"]  # as posted: NCCL gives whole buffers
        assert (seen["orphans"], seen["strange"]) == (0, 0)
        assert seen["stopped"] == seen["started"] > 0


#: 2.27 would read a pointer that it has not set.
@pytest.mark.parametrize(
    "version", variants(releases.NEWEST, "2.27.7", nightly=["2.26.5", "2.28.9", "2.29.7", "2.30.7"])
)
@pytest.mark.parametrize("events", [0, _COLLECTIVE, _NETWORK])
def test_a_profiler_is_no_danger(events: int, version: str, profiler: Path, tmp_path: Path) -> None:
    """Whatever it wants, also where NCCL moves several messages in one operation."""
    tasks: list[dict[str, Any]] = [{"do": "sums", "counts": [3_000]}, {"do": "exchange", "counts": [5_000, 200_003]}]
    for seen in _seen(profiler, tmp_path, version, events, tasks):
        assert seen["stopped"] == seen["started"]
        assert (seen["started"] > 0) == (events == _NETWORK and releases.number(version) >= (2, 28))
