# SPDX-License-Identifier: MIT
"""Jobs as users start them: DDP, fully_shard, Lightning, accelerate, scripts of Bagua's time, the page's script, the
examples.

Each of the first four saves a checkpoint on its way; a second job resumes from it and ends with the same weights, to
the last bit.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.support import jobs_launch, programs
from tests.support.jobs_launch import HERE, Command
from tests.support.tiers import variants

pytestmark = pytest.mark.gate

JOBS = Path(__file__).parent / "jobs"
#: The jobs use the examples' data and network.
SETTINGS = {"PYTHONPATH": programs.search_path(jobs_launch.EXAMPLES)}

#: Their ranks' weights differ after the last step. So do those of "async", whose script ends with abort().
_APART_AT_THE_END = ("decentralized", "low_precision_decentralized")

_DIGEST = re.compile(r"^(\w+) ([0-9a-f]{16})$", re.MULTILINE)
_SENT = re.compile(r"^(\w+): each rank sent (\S+) MB$", re.MULTILINE)
_EPOCH = re.compile(r"^epoch (\d+) loss (\S+) accuracy (\S+)$", re.MULTILINE)


@pytest.fixture(autouse=True)
def _packages() -> None:
    """scikit-learn contains the data set: ``pip install '.[examples]'``."""
    jobs_launch.needs("torch", "sklearn")


def _torchrun(ranks: int, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), *arguments]


def _by_itself(ranks: int, *arguments: str) -> list[str]:
    return [sys.executable, *arguments]


def _digests(command: Sequence[str]) -> dict[str, str]:
    printed = jobs_launch.run([Command(HERE, command, SETTINGS)])
    found = dict(_DIGEST.findall(printed))
    assert found, printed
    return found


@pytest.mark.nightly  # tests/algorithms/test_resume.py resumes every algorithm in the gate
@pytest.mark.parametrize(
    ("job", "launched", "ranks", "package"),
    [
        pytest.param("ddp_job", _torchrun, 2, "torch", id="ddp"),
        pytest.param("fsdp_job", _torchrun, 4, "torch", id="fsdp"),
        pytest.param("lightning_job", _by_itself, 2, "lightning", id="lightning"),
        pytest.param("accelerate_job", _torchrun, 2, "accelerate", id="accelerate"),
    ],
)
def test_a_job_that_is_resumed_ends_as_one_that_was_not(
    job: str, launched: Callable[..., list[str]], ranks: int, package: str, tmp_path: Path
) -> None:
    jobs_launch.needs(package)
    command = launched(ranks, "-m", f"tests.algorithms.jobs.{job}", str(tmp_path))
    whole = _digests(command)
    assert _digests([*command, "--resume"]) == whole


@pytest.mark.nightly
@pytest.mark.parametrize("name", variants("bytegrad", nightly=["qadam", "async"]))  # of gradients, momentum, weights
def test_a_script_in_baguas_style_runs_unchanged(name: str) -> None:
    script = ["-m", "bagua_net.compat", str(JOBS / "old_script.py"), "--algorithm", name]
    printed = jobs_launch.run([Command(HERE, _torchrun(2, *script))])
    epochs = _EPOCH.findall(printed)
    assert len(epochs) == 6, printed
    assert float(epochs[-1][1]) < float(epochs[0][1]) / 2, printed
    assert float(epochs[-1][2]) > 0.85, printed
    (apart,) = re.findall(r"^apart (\S+) names first\.weight,", printed, re.MULTILINE)
    assert (float(apart) == 0) == (name not in _APART_AT_THE_END)


@pytest.mark.nightly
def test_workers_that_a_script_spawns_import_bagua() -> None:
    script = ["-m", "bagua_net.compat", str(JOBS / "spawning_script.py")]
    assert jobs_launch.run([Command(HERE, _by_itself(1, *script))]) == "0 1 0\n1 1 1\n"


@pytest.mark.nightly
def test_the_first_script_of_the_page_runs(tmp_path: Path) -> None:
    page = (JOBS.parents[2] / "docs" / "algorithms.md").read_text()
    script = tmp_path / "train.py"
    script.write_text(page.partition("```python\n")[2].partition("```")[0])
    # torch does not require numpy, so that a user may have none.
    (tmp_path / "numpy.py").write_text('raise ModuleNotFoundError("there is no numpy", name="numpy")')
    printed = jobs_launch.run([Command(HERE, ["env", f"PYTHONPATH={tmp_path}", *_torchrun(2, str(script))])])
    assert printed.count("'elements': 6500.0") == 2, printed


@pytest.mark.nightly
@pytest.mark.parametrize(("name", "part"), [("bytegrad", 0.3), ("diloco", 0.02)])
def test_the_example_of_attach_sends_less(name: str, part: float) -> None:
    printed = jobs_launch.run([jobs_launch.torchrun(HERE, 1, "attach_digits.py", "--algorithm", name)])
    sent = {algorithm: float(megabytes) for algorithm, megabytes in _SENT.findall(printed)}
    assert list(sent) == ["allreduce", name], printed
    assert sent[name] < part * sent["allreduce"]
    assert jobs_launch.falling(jobs_launch.losses(printed)["bagua_net"]), printed  # the algorithm's, the last ones


@pytest.mark.nightly
def test_the_example_of_lightning_takes_an_algorithm() -> None:
    jobs_launch.needs("lightning")
    printed = jobs_launch.run([jobs_launch.by_itself(HERE, 1, "lightning_digits.py", "--algorithm", "bytegrad")])
    assert jobs_launch.falling(jobs_launch.losses(printed)["bagua_net"]), printed
