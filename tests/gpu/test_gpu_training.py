# SPDX-License-Identifier: MIT
"""DDP and FSDP2 train to the losses of one process, with the plugin and without."""

from __future__ import annotations

import pytest

from tests.gpu.gpu_jobs.job import Job
from tests.gpu.gpu_jobs.places import Run
from tests.support.tiers import variants

pytestmark = pytest.mark.gate

#: Relative, of a loss after eight steps in float32: the order of sums differs, and between CPU and GPU each product.
TOLERANCE = 1e-3


def _losses(run: Run, program: str, device: str, plugin: bool) -> list[list[float]]:
    return [report["result"]["losses"] for report in run(Job(program, 2, device, plugin)).reports]


@pytest.mark.nightly
@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("program", variants("fsdp", nightly=["ddp"]))
def test_losses_are_those_of_one_process(run: Run, program: str, device: str) -> None:
    first, second = _losses(run, program, device, plugin=True)
    assert first == second, "the ranks disagree on the mean of their losses"

    from tests.gpu.gpu_jobs import training  # which imports torch

    alone = training.alone()
    assert first == pytest.approx(alone, rel=TOLERANCE)
    assert first[-1] < 0.75 * first[0], "it learnt nothing: the comparison means nothing"


@pytest.mark.nightly
@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("program", ["ddp", "fsdp"])
def test_losses_are_those_without_the_plugin(run: Run, program: str, device: str) -> None:
    """Two ranks' sums do not depend on the order, so not on the network either."""
    own = _losses(run, program, device, plugin=False)
    assert _losses(run, program, device, plugin=True) == [pytest.approx(losses, rel=TOLERANCE / 100) for losses in own]


@pytest.mark.nightly
@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("program", variants("fsdp", nightly=["ddp"]))
def test_gradients_went_through_the_plugin(run: Run, program: str, device: str) -> None:
    reports = run(Job(program, 2, device)).reports

    from tests.gpu.gpu_jobs import training  # which imports torch

    for report in reports:
        assert report["result"]["bytes_sent"] >= training.STEPS * training.gradient_bytes() / 2
