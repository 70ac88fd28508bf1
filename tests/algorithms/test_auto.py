# SPDX-License-Identifier: MIT
"""auto: what it tries, how the ranks agree, what it says, what a checkpoint keeps."""

from __future__ import annotations

import itertools
import logging
import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from bagua_net.algorithms import AlgorithmHandle, Auto, attach
from tests.algorithms.inside import IGNORED_STEPS, costs, seconds_of_an_element, step_times
from tests.algorithms.models import backward, ddp, exact_gradients, gradients, net, same_on_all_ranks
from tests.support.rank import Here
from tests.support.ranks import Ranks, refusal
from tests.support.tiers import variants

BACKENDS = variants("bagua_net", nightly=["gloo"])
TRIAL = 2
#: Steps that one candidate takes.
EACH = TRIAL + IGNORED_STEPS
#: However much the times of real steps overlap, the trial is over.
ENOUGH = 12 * EACH


def _probes(here: Here) -> None:
    model = ddp(here, "gloo")
    before = torch.get_rng_state()
    torch.set_default_dtype(torch.float64)
    try:
        comm = attach(model, torch.optim.SGD(model.parameters(), lr=0.05), "auto")
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(torch.get_rng_state(), before), "a job with auto would draw other numbers than one without"
    comm.detach()


def test_measuring_depends_on_no_setting_of_torch_and_changes_none(two: Ranks) -> None:
    two.run(_probes)


def _probes_alone(here: Here) -> None:
    """Nothing is sent, and larger sizes take longer."""
    log = _log_lines()
    alone = [dist.new_group([rank], timeout=here.timeout) for rank in range(here.size)][here.rank]
    model = nn.parallel.DistributedDataParallel(net(), process_group=alone)
    with seconds_of_an_element(1e-9):
        comm = attach(model, torch.optim.SGD(model.parameters(), lr=0.05), Auto(trial_steps=TRIAL))
    _train(here, model, ENOUGH)
    assert comm.chosen is not None
    comm.detach()
    assert "latency 1 us" in log.lines[0]


def test_one_rank_measures_too(two: Ranks) -> None:
    two.run(_probes_alone)


class _Lines(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def _log_lines() -> _Lines:
    handler = _Lines()
    logger = logging.getLogger("bagua_net.algorithms")
    logger.handlers[:] = [handler]
    logger.setLevel(logging.INFO)
    return handler


def _auto_on(
    here: Here, backend: str, found: AbstractContextManager[None] | None = None
) -> tuple[nn.Module, AlgorithmHandle]:
    """The network is found to be so slow that all candidates are tried."""
    model = ddp(here, backend)
    with found or costs(bytes_per_s=1e6, codec_s=1e-9):
        return model, attach(model, torch.optim.SGD(model.parameters(), lr=0.05), Auto(trial_steps=TRIAL))


def _steady(fast: str, seconds: float = 0.04) -> Callable[[str], float]:
    """Steps with one of the candidates take so long, those with the others 0.1 s."""
    return lambda name: seconds if name == fast else 0.1


def _unsteady(fast: str, seconds: float) -> Callable[[str], float]:
    """Every other step of the candidate takes 0.2 s."""
    slow = itertools.cycle((True, False))
    return lambda name: 0.1 if name != fast else 0.2 if next(slow) else seconds


def _train(here: Here, model: torch.nn.Module, steps: int) -> None:
    for step in range(steps):
        model.zero_grad()
        backward(here, model, step)


def _tries(here: Here, backend: str, fast: str) -> tuple[str | None, list[str]]:
    """All candidates but one take as long as the clock of this test says: it is what they are timed with."""
    log = _log_lines()
    model, comm = _auto_on(here, backend)
    with step_times(comm, _steady(fast)):
        for step in range(3 * EACH + 3):
            model.zero_grad()
            backward(here, model, step)
            assert same_on_all_ranks(here, gradients(model))
    chosen = comm.chosen
    comm.detach()
    return chosen, log.lines


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("fast", ["bytegrad", "bfloat16", "allreduce", "none"])
def test_the_fastest_is_chosen_and_one_line_says_so(two: Ranks, backend: str, fast: str) -> None:
    chosen = fast if fast != "none" else "allreduce"
    (first, lines), (second, others) = two.run(_tries, backend, fast)
    assert first == second == chosen
    assert len(lines) == 1, lines
    assert others == []
    assert f"auto chooses {chosen}" in lines[0]
    assert "GB/s sent" in lines[0]


def _saves(here: Here, seconds: float) -> str | None:
    model, comm = _auto_on(here, "bagua_net")
    with step_times(comm, _steady("bfloat16", seconds)):
        _train(here, model, 3 * EACH + 3)
    chosen = comm.chosen
    comm.detach()
    return chosen


@pytest.mark.parametrize(("seconds", "chosen"), [(0.096, "allreduce"), (0.094, "bfloat16")])
def test_exact_averages_are_kept_unless_another_saves_a_twentieth(two: Ranks, seconds: float, chosen: str) -> None:
    assert two.run(_saves, seconds) == [chosen, chosen]


def _tries_again(here: Here) -> None:
    """Three more rounds with the two in question, of which each ignores one step of a turn."""
    model, comm = _auto_on(here, "bagua_net")
    with step_times(comm, _unsteady("bytegrad", 0.02)):
        _train(here, model, 3 * EACH + 3 * 2 * (TRIAL + 1))
        assert comm.chosen is None
        _train(here, model, 1)
    assert comm.chosen == "allreduce"
    comm.detach()


def test_where_times_overlap_the_trial_goes_on(two: Ranks) -> None:
    two.run(_tries_again)


def _rules_out(here: Here) -> tuple[int, list[str]]:
    log = _log_lines()
    model, comm = _auto_on(here, "bagua_net", costs(latency_s=0.5, bytes_per_s=1e3, codec_s=1e-2))
    with step_times(comm, _steady("none")):
        _train(here, model, 2 * EACH + 3)
    assert comm.chosen == "allreduce"
    comm.detach()
    return sum(each.numel() for each in model.parameters()), log.lines


def test_what_is_not_tried_has_a_reason(two: Ranks) -> None:
    """By what the averages of a step would take. Of codes, about a quarter of the bytes, in two exchanges, and the time
    of the codec."""
    (elements, (line,)), _ = two.run(_rules_out)
    found = re.search(r"bytegrad not tried \(its averages would take ([\d.]+) ms, exact ones ([\d.]+)\)", line)
    assert found, line
    of_codes, exact = map(float, found.groups())
    assert exact == pytest.approx(500 + 4 * elements, abs=0.1)
    assert of_codes == pytest.approx(2 * 500 + elements * 520 / 512 + 10 * elements, rel=0.001)


def _one_rank_is_slow(here: Here) -> str | None:
    """ByteGrad is slow on rank 1 only, and faster than the rest on rank 0."""
    model, comm = _auto_on(here, "bagua_net")
    with step_times(comm, _steady("bytegrad" if here.rank == 0 else "none")):
        _train(here, model, 3 * EACH + 3)
    chosen = comm.chosen
    comm.detach()
    return chosen


def test_the_slowest_rank_decides(two: Ranks) -> None:
    assert two.run(_one_rank_is_slow) == ["allreduce", "allreduce"]


def _resumes(here: Here) -> None:
    """A choice is kept: a resumed job does not try again."""
    model, comm = _auto_on(here, "bagua_net")
    with step_times(comm, _steady("bytegrad")):
        _train(here, model, 3 * EACH + 2)
    state = comm.state_dict()
    comm.detach()
    model, comm = _auto_on(here, "bagua_net")
    comm.load_state_dict(state)
    assert comm.chosen == "bytegrad"
    model.zero_grad()
    backward(here, model, 0)
    exact = exact_gradients(here, model, 0)
    assert not torch.allclose(gradients(model)["0.weight"], exact["0.weight"], rtol=1e-5, atol=1e-7)
    comm.detach()


def test_a_choice_is_in_the_checkpoint(two: Ranks) -> None:
    two.run(_resumes)


def _begins_the_trial_again(here: Here) -> None:
    """A state of the trial: what was timed before is another job's."""
    model, comm = _auto_on(here, "bagua_net")
    with step_times(comm, _steady("bytegrad")):
        _train(here, model, EACH + 2)
        state = comm.state_dict()
        assert state["state"]["seconds"]
        assert not state["state"]["chosen"]
        comm.load_state_dict(state)
        assert not comm.state_dict()["state"]["seconds"]
        _train(here, model, 3 * EACH)
        assert comm.chosen is None
        _train(here, model, 1)
    assert comm.chosen == "bytegrad"
    comm.detach()


def test_a_trial_that_was_under_way_begins_again(two: Ranks) -> None:
    two.run(_begins_the_trial_again)


def _forgets_the_trial(here: Here) -> None:
    model, comm = _auto_on(here, "bagua_net")
    had_residuals, steps = False, 3 * EACH + 2
    with step_times(comm, _steady("none")):
        for step in range(steps):
            model.zero_grad()
            backward(here, model, step)
            residuals = comm.state_dict()["state"]["states"]["bytegrad"]["residuals"]
            had_residuals |= bool(residuals)
    assert comm.chosen == "allreduce"
    assert had_residuals
    assert not residuals
    assert comm.stats()["elements"] == steps * sum(each.numel() for each in model.parameters())
    comm.detach()


def test_what_is_not_chosen_leaves_no_residuals_and_stays_counted(two: Ranks) -> None:
    two.run(_forgets_the_trial)


def _fails_between_steps(here: Here) -> None:
    """When the ranks agree which one's steps were the slowest."""
    model, comm = _auto_on(here, "bagua_net")
    _train(here, model, EACH)
    reduce = dist.all_reduce

    def broken(tensor: torch.Tensor, *arguments: Any, **named: Any) -> Any:
        if tensor.dtype == torch.float64:
            raise RuntimeError("no such luck")
        return reduce(tensor, *arguments, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, "all_reduce", broken)
        assert "no such luck" in refusal(lambda: backward(here, model, 0))
    comm.detach()
    model = ddp(here, "bagua_net")
    again = attach(model, torch.optim.SGD(model.parameters(), lr=0.05), "bytegrad")
    assert again._context.own is not comm._context.own
    again.detach()


def test_a_group_whose_collective_has_failed_between_steps_is_not_used_again(two: Ranks) -> None:
    two.run(_fails_between_steps)
