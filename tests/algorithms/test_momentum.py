# SPDX-License-Identifier: MIT
"""What QAdam refuses at the attach, and what would spoil momentum, which it has in the place of gradients."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from bagua_net.algorithms import AlgorithmHandle, QAdam, QAdamOptimizer, _qadam_optimizer, attach
from tests.algorithms.models import backward, ddp, same_on_all_ranks
from tests.algorithms.test_qadam import WARM_UP, set_up, train
from tests.support.between import Case, at_each_step
from tests.support.rank import Here
from tests.support.ranks import Ranks, refusal


def _attached(model: nn.Module, **arguments: Any) -> AlgorithmHandle:
    return attach(model, QAdamOptimizer(model.parameters(), warmup_steps=1), QAdam(), **arguments)


def _other_optimizer(here: Here) -> str:
    model = ddp(here, "bagua_net")
    return refusal(lambda: attach(model, torch.optim.Adam(model.parameters()), "qadam"))


def _scaler(here: Here) -> str:
    return refusal(lambda: _attached(ddp(here, "bagua_net"), scaler=torch.amp.GradScaler("cpu")))


def _missing_parameter(here: Here) -> str:
    model = ddp(here, "bagua_net")
    return refusal(lambda: attach(model, QAdamOptimizer(model.module[0].parameters()), "qadam"))


def _state_of_other_bits(here: Here) -> str:
    model, optimizer, comm = set_up(here, 8)
    train(here, model, optimizer, range(WARM_UP + 2))
    state = comm.state_dict()
    comm.detach()
    comm = attach(model, optimizer, QAdam(bits=1))
    refused = refusal(lambda: comm.load_state_dict(state))
    comm.detach()
    return refused


def _differing_warm_up(here: Here) -> str:
    model = ddp(here, "bagua_net")
    return refusal(lambda: attach(model, QAdamOptimizer(model.parameters(), warmup_steps=5 + here.rank), "qadam"))


def _in_second_phase(here: Here) -> tuple[DistributedDataParallel, QAdamOptimizer, AlgorithmHandle]:
    """With momentum in the place of gradients."""
    model, optimizer, comm = set_up(here, 8)
    train(here, model, optimizer, range(WARM_UP))
    optimizer.zero_grad()
    backward(here, model, 0)
    return model, optimizer, comm


def _clips(here: Here) -> str:
    model, optimizer, comm = _in_second_phase(here)
    nn.utils.clip_grad_norm_(model.parameters(), 1e-4)
    refused = refusal(optimizer.step)
    comm.detach()
    return refused


def _clips_a_part(here: Here, part: int) -> str:
    """Of a model with several buckets."""
    model, optimizer, comm = _in_second_phase(here)
    nn.utils.clip_grad_norm_(model.module[part].parameters(), 1e-4)
    refused = refusal(optimizer.step)
    comm.detach()
    return refused


def _clips_the_last_part(here: Here) -> str:
    return _clips_a_part(here, -1)


def _clips_the_first_part(here: Here) -> str:
    return _clips_a_part(here, 0)


def _clips_without_effect(here: Here) -> str:
    model, optimizer, comm = _in_second_phase(here)
    nn.utils.clip_grad_norm_(model.parameters(), 1e4)
    refused = refusal(optimizer.step)
    comm.detach()
    return refused


def _second_backward(here: Here) -> str:
    model, _, comm = _in_second_phase(here)
    refused = refusal(partial(backward, here, model, 1))
    comm.detach()
    return refused


def _second_backward_after_zero_grad(here: Here) -> str:
    model, optimizer, comm = _in_second_phase(here)
    optimizer.zero_grad()
    backward(here, model, 1)
    refused = refusal(optimizer.step)
    comm.detach()
    return refused


@pytest.mark.parametrize(
    ("what", "words"),
    [
        (_other_optimizer, ["ValueError", "Adam", "QAdamOptimizer"]),
        (_scaler, ["ValueError", "GradScaler", "bfloat16"]),
        (_missing_parameter, ["ValueError", "2.weight"]),
        (_differing_warm_up, ["ValueError", "warmup_steps", "[5", "[6", "rank 1"]),
        (_state_of_other_bits, ["ValueError", "of QAdam(bits=8)", "QAdam(bits=1)"]),
        (_clips, ["RuntimeError", "clipping"]),
        (_clips_the_first_part, ["RuntimeError", "clipping"]),
        (_clips_the_last_part, ["RuntimeError", "clipping"]),
        (_clips_without_effect, ["accepted"]),
        (_second_backward, ["RuntimeError", "no_sync"]),
        (_second_backward_after_zero_grad, ["accepted"]),
    ],
)
def test_what_would_spoil_momentum_is_refused(two: Ranks, what: Callable[[Here], str], words: list[str]) -> None:
    for refused in two.run(what):
        assert "\n" not in refused
        assert all(word in refused for word in words), refused


def _frozen_after_wrapping(here: Here, bits: int) -> None:
    """DDP has it in a bucket, and the optimizer has it not. Then it requires a gradient again."""
    model = ddp(here, "bagua_net", find_unused_parameters=True)
    frozen = model.module[0].weight
    before = frozen.detach().clone()
    frozen.requires_grad_(False)
    trained = [each for each in model.parameters() if each.requires_grad]
    optimizer = QAdamOptimizer(trained, 0.01, warmup_steps=WARM_UP)
    comm = attach(model, optimizer, QAdam(bits=bits, block=32))
    train(here, model, optimizer, range(WARM_UP + 3))
    assert torch.equal(frozen, before)
    assert same_on_all_ranks(here, dict(model.module.named_parameters()))
    frozen.requires_grad_(True)
    optimizer.zero_grad()
    assert "the parameter 0.weight required no gradient" in refusal(lambda: backward(here, model, 0))
    comm.detach()


@pytest.mark.parametrize("bits", [8, 1])
def test_a_parameter_that_the_optimizer_has_not_stays_as_it_is(two: Ranks, bits: int) -> None:
    two.run(_frozen_after_wrapping, bits)


def test_backward_and_the_worker_s_thread_both_say_what_is_momentum() -> None:
    """Between any two steps of one, the other says it of another bucket."""
    used, unused = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))

    def case(*, backward_first: bool) -> Case:
        optimizer = QAdamOptimizer([used, unused], warmup_steps=1)
        optimizer.forming([unused])

        def in_backward() -> None:
            optimizer.forming([used])

        def in_the_worker() -> None:
            optimizer.not_forming([unused])

        def check() -> None:
            optimizer.begin_backward([unused])
            with pytest.raises(RuntimeError, match="a second backward pass"):
                optimizer.begin_backward([used])

        calls = (in_backward, in_the_worker) if backward_first else (in_the_worker, in_backward)
        return Case(*calls, check)

    assert at_each_step([_qadam_optimizer, torch._tensor], partial(case, backward_first=True)) > 2
    assert at_each_step([_qadam_optimizer, torch._tensor], partial(case, backward_first=False)) > 2
