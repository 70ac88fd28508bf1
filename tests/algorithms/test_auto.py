# SPDX-License-Identifier: MIT
"""auto: what it tries, how the ranks agree, what it says, what a checkpoint keeps."""

from __future__ import annotations

import contextlib
import logging
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist

from bagua_net.algorithms import Attachment, Auto, _auto, attach
from bagua_net.algorithms._codec import Codec
from bagua_net.algorithms._probe import Costs, probe
from tests.algorithms.models import backward, ddp, exact_gradients, gradients, same_on_all_ranks
from tests.support.rank import Here
from tests.support.ranks import Ranks, refusal
from tests.support.tiers import variants

BACKENDS = variants("bagua_net", nightly=["gloo"])
TRIAL = 2
#: Steps that one candidate takes.
EACH = TRIAL + _auto._IGNORED_STEPS


def _probes(here: Here) -> None:
    before = torch.get_rng_state()
    torch.set_default_dtype(torch.float64)
    try:
        costs = probe(here.gloo, torch.device("cpu"))
    finally:
        torch.set_default_dtype(torch.float32)
    assert costs.codec_s > 0
    assert torch.equal(torch.get_rng_state(), before), "a job with auto would draw other numbers than one without"


def test_measuring_depends_on_no_setting_of_torch_and_changes_none(two: Ranks) -> None:
    two.run(_probes)


def _probes_alone(here: Here) -> None:
    """Nothing is sent, and larger sizes take longer."""
    alone = [dist.new_group([rank], timeout=here.timeout) for rank in range(here.size)][here.rank]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bagua_net.algorithms._probe._all_reduce_s", lambda *arguments: 1e-9 * arguments[-1])
        costs = probe(alone, torch.device("cpu"))
    assert 0 < costs.ring(4e6, alone.size()) < 1


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


def _auto_on(here: Here, backend: str) -> tuple[torch.nn.Module, Attachment]:
    model = ddp(here, backend)
    return model, attach(model, torch.optim.SGD(model.parameters(), lr=0.05), Auto(trial_steps=TRIAL))


@contextlib.contextmanager
def _timed(
    comm: Attachment, fast: str, seconds: float = 0.04, clock: Callable[..., Callable[[], float]] | None = None
) -> Iterator[None]:
    """All candidates are tried, and steps with one of them take so long, those with the others 0.1 s."""
    running = comm._running
    assert isinstance(running, _auto._Trying)
    running._may_win = lambda name: True  # type: ignore[method-assign]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "perf_counter", (clock or _Clock)(running, fast, seconds))
        yield


def _train(here: Here, model: torch.nn.Module, steps: int) -> None:
    for step in range(steps):
        model.zero_grad()
        backward(here, model, step)


def _tries(here: Here, backend: str, fast: str) -> tuple[float, list[str]]:
    """All candidates but one take as long as the clock of this test says: it is what they are timed with."""
    log = _log_lines()
    model, comm = _auto_on(here, backend)
    with _timed(comm, fast):
        for step in range(3 * EACH + 3):
            model.zero_grad()
            backward(here, model, step)
            assert same_on_all_ranks(here, gradients(model))
    chosen = comm.stats()["chosen"]
    comm.detach()
    return chosen, log.lines


class _Clock:
    """Steps take 0.1 s, those of a candidate as long as it is told."""

    def __init__(self, running: _auto._Trying, fast: str, seconds: float) -> None:
        self._running, self._fast, self._seconds, self._now = running, fast, seconds, 0.0

    def __call__(self) -> float:
        self._now += self._seconds if self._running._now == self._fast else 0.1
        return self._now


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("fast", "chosen"), [("bytegrad", 2), ("bfloat16", 1), ("allreduce", 0), ("none", 0)])
def test_the_fastest_is_chosen_and_one_line_says_so(two: Ranks, backend: str, fast: str, chosen: int) -> None:
    (first, lines), (second, others) = two.run(_tries, backend, fast)
    assert first == second == chosen
    assert len(lines) == 1, lines
    assert others == []
    assert f"auto chooses {list(_auto._CANDIDATES)[chosen]}" in lines[0]
    assert "GB/s sent" in lines[0]


def _saves(here: Here, seconds: float) -> float:
    model, comm = _auto_on(here, "bagua_net")
    with _timed(comm, "bfloat16", seconds):
        _train(here, model, 3 * EACH + 3)
    chosen = comm.stats()["chosen"]
    comm.detach()
    return chosen


@pytest.mark.parametrize(("seconds", "chosen"), [(0.096, 0), (0.094, 1)])
def test_exact_averages_are_kept_unless_another_saves_a_twentieth(two: Ranks, seconds: float, chosen: int) -> None:
    assert two.run(_saves, seconds) == [chosen, chosen]


class _Unsteady(_Clock):
    """Every other step of the candidate takes 0.2 s."""

    _slow = False

    def __call__(self) -> float:
        self._slow = not self._slow
        if self._slow and self._running._now == self._fast:
            self._now += 0.2
            return self._now
        return super().__call__()


def _tries_again(here: Here) -> None:
    """Three more rounds with the two in question, of which each ignores one step of a turn."""
    model, comm = _auto_on(here, "bagua_net")
    with _timed(comm, "bytegrad", 0.02, _Unsteady):
        _train(here, model, 3 * EACH + 3 * 2 * (TRIAL + 1))
        assert comm.stats()["chosen"] == -1
        _train(here, model, 1)
    assert comm.stats()["chosen"] == 0
    comm.detach()


def test_where_times_overlap_the_trial_goes_on(two: Ranks) -> None:
    two.run(_tries_again)


def _rules_out(here: Here) -> list[str]:
    log = _log_lines()
    model, comm = _auto_on(here, "bagua_net")
    with _timed(comm, "none"):
        running = comm._running
        assert isinstance(running, _auto._Trying)
        running._may_win = lambda name: name != "bytegrad"  # type: ignore[method-assign]
        _train(here, model, 2 * EACH + 3)
    assert comm.stats()["chosen"] == 0
    comm.detach()
    return log.lines


def test_what_is_not_tried_has_a_reason(two: Ranks) -> None:
    (line,), _ = two.run(_rules_out)
    assert re.search(r"bytegrad not tried \(its averages would take [\d.]+ ms, exact ones [\d.]+\)", line)


def _one_rank_is_slow(here: Here) -> float:
    """ByteGrad is slow on rank 1 only, and faster than the rest on rank 0."""
    model, comm = _auto_on(here, "bagua_net")
    with _timed(comm, "bytegrad" if here.rank == 0 else "none"):
        _train(here, model, 3 * EACH + 3)
    chosen = comm.stats()["chosen"]
    comm.detach()
    return chosen


def test_the_slowest_rank_decides(two: Ranks) -> None:
    assert two.run(_one_rank_is_slow) == [0.0, 0.0]


def _resumes(here: Here) -> None:
    """A choice is kept: a resumed job does not try again."""
    model, comm = _auto_on(here, "bagua_net")
    with _timed(comm, "bytegrad"):
        _train(here, model, 3 * EACH + 2)
    state = comm.state_dict()
    comm.detach()
    model, comm = _auto_on(here, "bagua_net")
    comm.load_state_dict(state)
    assert comm.stats()["chosen"] == 2
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
    with _timed(comm, "bytegrad"):
        _train(here, model, EACH + 2)
        state = comm.state_dict()
        assert state["state"]["seconds"]
        assert not state["state"]["chosen"]
        comm.load_state_dict(state)
        assert not comm.state_dict()["state"]["seconds"]
        _train(here, model, 3 * EACH)
        assert comm.stats()["chosen"] == -1
        _train(here, model, 1)
    assert comm.stats()["chosen"] == 2
    comm.detach()


def test_a_trial_that_was_under_way_begins_again(two: Ranks) -> None:
    two.run(_begins_the_trial_again)


def _forgets_the_trial(here: Here) -> None:
    model, comm = _auto_on(here, "bagua_net")
    had_residuals, steps = False, 3 * EACH + 2
    with _timed(comm, "none"):
        for step in range(steps):
            model.zero_grad()
            backward(here, model, step)
            residuals = comm.state_dict()["state"]["states"]["bytegrad"]["residuals"]
            had_residuals |= bool(residuals)
    assert comm.stats()["chosen"] == 0
    assert had_residuals
    assert not residuals
    assert comm.stats()["elements"] == steps * sum(each.numel() for each in model.parameters())
    comm.detach()


def test_what_is_not_chosen_leaves_no_residuals_and_stays_counted(two: Ranks) -> None:
    two.run(_forgets_the_trial)


def _broken(*_: Any, **__: Any) -> None:
    raise RuntimeError("no such luck")


def _fails_between_steps(here: Here) -> None:
    model, comm = _auto_on(here, "bagua_net")
    running = comm._running
    assert isinstance(running, _auto._Trying)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, "all_reduce", _broken)
        assert "no such luck" in refusal(lambda: running._slowest([0.1]))
    comm.detach()
    again = attach(model, torch.optim.SGD(model.parameters(), lr=0.05), "bytegrad")
    assert again.job.own is not comm.job.own
    again.detach()


def test_a_group_whose_collective_has_failed_between_steps_is_not_used_again(two: Ranks) -> None:
    two.run(_fails_between_steps)


# ---- predictions ----


def test_an_average_of_codes_takes_a_quarter_of_the_bytes_and_its_codec() -> None:
    slow = Costs(latency_s=1e-4, bytes_per_s=1e8, codec_s=1e-9)
    elements = 10_000_000
    assert slow.ring(4 * elements, 2) == pytest.approx(0.4, rel=0.01)
    assert slow.compressed(elements, Codec(), 2) == pytest.approx(0.1 * 520 / 512 + 0.01, rel=0.02)
    fast = Costs(latency_s=1e-4, bytes_per_s=1e11, codec_s=1e-9)
    assert fast.compressed(elements, Codec(), 2) > 5 * fast.ring(4 * elements, 2)
