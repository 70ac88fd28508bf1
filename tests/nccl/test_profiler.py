# SPDX-License-Identifier: MIT
"""A profiler plugin of real NCCL sees each message of the plugin, from its post to its end, below the step of NCCL that
it belongs to."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.nccl import nccl_job, releases
from tests.support.tiers import variants

pytestmark = pytest.mark.gate

_SOURCE = Path(__file__).with_name("profiler.c")
_ROOT = _SOURCE.parents[2]
#: Of four bytes each. In a ring of two, a rank sends as many as a buffer has.
_COUNTS = [1_000, 70_000, 1_500_000]
_TIMES = 2
#: The first release that tells a network of the profiler, those where its handles changed, and the newest.
_RELEASES = variants(releases.NEWEST, nightly=("2.26.5", "2.27.7", "2.28.9", "2.29.7", "2.30.7"))


@pytest.fixture
def profiler(tmp_path: Path) -> Path:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    made = tmp_path / "libnccl-profiler-test.so"
    options = ["-shared", "-fPIC", "-std=c17", f"-I{_ROOT}"]
    subprocess.run([compiler, *options, "-o", str(made), str(_SOURCE)], check=True, timeout=60)
    return made


@pytest.mark.parametrize("version", _RELEASES)
@pytest.mark.parametrize("threads", [0, 1])
def test_each_message_is_an_event(threads: int, version: str, profiler: Path, tmp_path: Path) -> None:
    told = [tmp_path / f"profile-{rank}" for rank in range(2)]
    settings = {
        **releases.settings(version),
        "NCCL_PROFILER_PLUGIN": str(profiler),
        "NCCL_ALGO": "Ring",
        "NCCL_PROTO": "Simple",
        "BAGUA_NET_THREADS": str(threads),
        "BAGUA_NET_MIN_NSTREAMS": "4",
    }
    each = [{"BNET_TEST_PROFILE": str(path)} for path in told]
    with nccl_job.start("traffic_rank", 2, version, nccl_job.BAGUA, tmp_path, settings=settings, each=each) as job:
        assert job.ask({"do": "sums", "counts": _COUNTS, "times": _TIMES}) == [0, 0]
        job.finish()
    for path in told:
        seen = {name: int(value) for name, value in map(str.split, path.read_text().splitlines())}
        assert seen["sent"] == sum(_COUNTS) * 4 * _TIMES
        assert seen["received"] >= seen["sent"]  # as posted: NCCL gives whole buffers
        assert seen["strange"] == 0
        assert seen["orphans"] == 0 or releases.number(version) < (2, 27)  # which names a later step, or none
        assert seen["stopped"] == seen["started"] > 0
