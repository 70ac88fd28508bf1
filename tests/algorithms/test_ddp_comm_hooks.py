# SPDX-License-Identifier: MIT
"""ByteGrad as a plain communication hook: by hand, by Lightning and with accelerate, the same bits as by attach."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_wrapper

from bagua_net.algorithms import ByteGrad, attach
from bagua_net.algorithms.ddp_comm_hooks import ByteGradState, bytegrad_hook
from tests.algorithms.models import (
    SMALL_BUCKETS,
    WIDTH,
    backward,
    batch,
    ddp,
    group_of,
    inside,
    net,
    same_on_all_ranks,
)
from tests.support.rank import Here
from tests.support.ranks import Ranks, refusal
from tests.support.tiers import variants

BACKENDS = variants("bagua_net", "gloo")
STEPS = 4
RATE = 0.05
FOUR_BITS = ByteGrad(bits=4, block=32)


def _trained(here: Here, model: nn.Module, scaler: Any = None) -> dict[str, torch.Tensor]:
    optimizer = torch.optim.SGD(model.parameters(), RATE, momentum=0.9)
    for step in range(STEPS):
        optimizer.zero_grad()
        if scaler is None:
            backward(here, model, step)
            optimizer.step()
        else:
            x, y = batch(here, step)
            scaler.scale(nn.functional.mse_loss(model(x), y)).backward()
            scaler.step(optimizer)
            scaler.update()
    return {name: each.detach().clone() for name, each in inside(model).named_parameters()}


def _by_attach(
    here: Here, backend: str, module: nn.Module | None = None, scaler: Any = None, **arguments: Any
) -> dict[str, torch.Tensor]:
    model = ddp(here, backend, module, **arguments)
    comm = attach(model, torch.optim.SGD(model.parameters(), RATE), FOUR_BITS, scaler=scaler)
    trained = _trained(here, model, scaler)
    comm.detach()
    return trained


def _equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in other)


# ---- by hand ----


class _Branch(nn.Module):  # type: ignore[misc]
    """Every other forward pass is without a branch, on all ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.always, self.sometimes = net(), nn.Linear(WIDTH, 5)
        self._passes = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self._passes += 1
        return self.always(x) + (self.sometimes(x) if self._passes % 2 else 0)


def _registered(here: Here, backend: str, arguments: dict[str, Any]) -> None:
    made = _Branch if arguments else net
    model = ddp(here, backend, made(), **arguments)
    state = ByteGradState(FOUR_BITS, process_group=group_of(here, backend), **arguments)
    model.register_comm_hook(state, bytegrad_hook)
    got = _trained(here, model)
    assert _equal(got, _by_attach(here, backend, made(), **arguments))
    assert same_on_all_ranks(here, got)


@pytest.mark.parametrize("arguments", [{}, {"find_unused_parameters": True}], ids=["all-used", "unused"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_hook_that_is_registered_by_hand(two: Ranks, backend: str, arguments: dict[str, Any]) -> None:
    two.run(_registered, backend, arguments)


def _scaled(here: Here) -> None:
    def scaler() -> Any:
        return torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=1)  # doubles with each step

    model, own = ddp(here, "bagua_net"), scaler()
    model.register_comm_hook(ByteGradState(FOUR_BITS, scaler=own), bytegrad_hook)
    assert _equal(_trained(here, model, own), _by_attach(here, "bagua_net", scaler=scaler()))


def test_residuals_follow_the_scale(two: Ranks) -> None:
    two.run(_scaled)


def _wrapped(here: Here) -> None:
    """torch's wrapper, by which frameworks let a hook have 16 bits."""
    model = ddp(here, "bagua_net")
    model.register_comm_hook(ByteGradState(), fp16_compress_wrapper(bytegrad_hook))
    assert same_on_all_ranks(here, _trained(here, model))


def test_torchs_wrapper_of_16_bits(two: Ranks) -> None:
    two.run(_wrapped)


def _attached_as_well(here: Here) -> str:
    model = ddp(here, "bagua_net")
    model.register_comm_hook(ByteGradState(), bytegrad_hook)
    return refusal(lambda: attach(model, torch.optim.SGD(model.parameters(), RATE), "bytegrad"))


def test_attach_names_the_hook(two: Ranks) -> None:
    for said in two.run(_attached_as_well):
        assert "bytegrad_hook" in said


def test_a_state_can_be_pickled_before_there_is_a_group() -> None:
    """As Lightning does for the processes that it starts."""
    state = pickle.loads(pickle.dumps(ByteGradState(FOUR_BITS, scaler=object())))
    assert state._settings == FOUR_BITS


# ---- by Lightning ----


def _by_lightning(here: Here) -> None:
    """Lightning registers hooks on CUDA only: this is the function that it calls there."""
    from lightning.pytorch.overrides.distributed import _register_ddp_comm_hook

    model = ddp(here, "bagua_net")
    _register_ddp_comm_hook(model, ByteGradState(FOUR_BITS), bytegrad_hook)
    assert _equal(_trained(here, model), _by_attach(here, "bagua_net"))


@pytest.mark.nightly
def test_lightning_registers_it(two: Ranks) -> None:
    pytest.importorskip("lightning.pytorch", reason="lightning is not installed")
    two.run(_by_lightning)


# ---- with accelerate ----


def _with_accelerate(here: Here) -> None:
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState
    from accelerate.utils import DistributedDataParallelKwargs

    rank, size = str(here.rank), str(here.size)
    launcher = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size, "MASTER_PORT": "0"}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in launcher.items():
            patch.setenv(name, value)
        wrapping = DistributedDataParallelKwargs(bucket_cap_mb=SMALL_BUCKETS)
        model = Accelerator(cpu=True, kwargs_handlers=[wrapping]).prepare(net())
        AcceleratorState._reset_state(True)
    model.register_comm_hook(ByteGradState(FOUR_BITS), bytegrad_hook)
    assert _equal(_trained(here, model), _by_attach(here, "bagua_net"))


def test_with_accelerate(two: Ranks) -> None:
    pytest.importorskip("accelerate", reason="accelerate is not installed")
    two.run(_with_accelerate)
