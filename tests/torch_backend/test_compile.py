# SPDX-License-Identifier: MIT
"""torch.compile: DDP, FSDP, FSDP2, and collectives inside compiled functions.

Three steps each: at the second, DDP's reducer makes its buckets anew.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.device_mesh
import torch.distributed.fsdp
from torch.distributed import _functional_collectives as functional

from tests.support.ranks import Ranks
from tests.support.tiers import variants
from tests.torch_backend import names

if TYPE_CHECKING:
    from tests.support.rank import Here

_TWO = pytest.mark.parametrize("ranks", [2], indirect=True)
#: inductor generates C++ for the CPU; "aot_eager" makes the same graphs, generates nothing and takes less time.
_INDUCTOR = pytest.param(
    "inductor", marks=pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ is installed")
)
_EAGER = "aot_eager"
_STEPS = 3


# ---- training ----


def _wrapped(kind: str, layers: torch.nn.Module, here: Here) -> torch.nn.Module:
    if kind == "ddp":
        return torch.nn.parallel.DistributedDataParallel(layers, bucket_cap_mb=1)  # the smallest that torch compiles
    if kind == "fsdp1":
        return torch.distributed.fsdp.FullyShardedDataParallel(layers, device_id=torch.device("cpu"))
    mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (here.size,))
    return torch.distributed.fsdp.fully_shard(layers, mesh=mesh)


def trained(here: Here, kind: str, compiler: str | None) -> list[float]:
    """The losses of a small model. ``compiler`` None: not compiled."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    layers = torch.nn.Sequential(torch.nn.Linear(16, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 512))
    model = _wrapped(kind, layers, here)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = model if compiler is None else torch.compile(model, backend=compiler)
    losses = []
    for number in range(_STEPS):
        torch.manual_seed(10 * number + here.rank)
        loss = step(torch.randn(8, 16)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.gate
@pytest.mark.parametrize("compiler", [_INDUCTOR])
@pytest.mark.parametrize("kind", variants("ddp", nightly=["fsdp1", "fsdp2"]))
@_TWO
def test_compiled_training_as_without(ranks: Ranks, kind: str, compiler: str) -> None:
    compiled, eager = (ranks.run(trained, kind, how, seconds=300) for how in (compiler, None))
    for mine, other in zip(compiled, eager, strict=True):
        assert mine == pytest.approx(other, rel=1e-4)


# ---- collectives inside compiled functions ----


def _all_reduce(tensor: torch.Tensor, here: Here) -> torch.Tensor:
    dist.all_reduce(tensor)
    return tensor * 2


def _all_reduce_async(tensor: torch.Tensor, here: Here) -> torch.Tensor:
    work = dist.all_reduce(tensor, async_op=True)
    other = tensor.new_ones(3) * 3
    work.wait()
    return tensor + other - 3


def _broadcast(tensor: torch.Tensor, here: Here) -> torch.Tensor:
    dist.broadcast(tensor, src=1)
    return tensor + 1


def _reduce(tensor: torch.Tensor, here: Here) -> torch.Tensor:
    dist.reduce(tensor, dst=0)
    return tensor + 1


def _all_gather(tensor: torch.Tensor, here: Here) -> torch.Tensor:
    parts = [torch.empty_like(tensor) for _ in range(here.size)]
    dist.all_gather(parts, tensor + 1)
    return torch.cat(parts)


def _messages(tensor: torch.Tensor, here: Here) -> torch.Tensor:
    theirs = torch.empty_like(tensor)
    if here.rank == 0:
        dist.send(tensor + 1, 1)
        dist.recv(theirs, 1)
    else:
        dist.recv(theirs, 0)
        dist.send(tensor + 1, 0)
    return theirs * 2


def _functional(tensor: torch.Tensor, here: Here) -> torch.Tensor:
    total = functional.all_reduce(tensor, "sum", dist.group.WORLD)
    whole = names.functional_all_gather(tensor, 0, dist.group.WORLD)
    share = names.functional_reduce_scatter(whole, "sum", 0, dist.group.WORLD)
    return total + share


_FUNCTIONS: dict[str, Callable[[torch.Tensor, Here], torch.Tensor]] = {
    "all_reduce": _all_reduce,
    "all_reduce, asynchronous": _all_reduce_async,
    "all_gather": _all_gather,
    "broadcast": _broadcast,
    "reduce": _reduce,
    "send and recv": _messages,
    "functional": _functional,
}


def called(here: Here, name: str, compiler: str) -> None:
    torch._dynamo.reset()
    function = _FUNCTIONS[name]
    compiled = torch.compile(function, backend=compiler)
    for step in range(_STEPS):
        given = torch.full((3,), float(10 * step + here.rank + 1))
        torch.testing.assert_close(compiled(given.clone(), here), function(given.clone(), here))


@pytest.mark.parametrize("name", _FUNCTIONS)
@_TWO
def test_a_collective_inside_a_compiled_function(ranks: Ranks, name: str) -> None:
    ranks.run(called, name, _EAGER, seconds=300)


@pytest.mark.nightly
@pytest.mark.parametrize("compiler", [_INDUCTOR])
@_TWO
def test_functional_collectives_in_generated_code(ranks: Ranks, compiler: str) -> None:
    ranks.run(called, "functional", compiler, seconds=300)


# ---- what torch does not hand to Python ----


def gathered_in_place(here: Here) -> str:
    """Inductor's form of a gather whose output exists already."""
    output = torch.zeros(2 * here.size)
    name = dist.group.WORLD.group_name
    try:
        torch.ops._c10d_functional.all_gather_into_tensor_out(
            torch.full((2,), float(here.rank)), here.size, name, out=output
        )
        torch.ops._c10d_functional.wait_tensor(output)
    except RuntimeError as error:
        return str(error)
    assert output.tolist() == [float(rank) for rank in range(here.size) for _ in range(2)]
    return ""


def test_a_gather_that_torch_does_not_hand_to_python(ranks: Ranks) -> None:
    """torch refuses it, or the result is right."""
    for told in ranks.run(gathered_in_place):
        assert not told or "No backend type associated with device type cpu" in told


# ---- the means ----


def seen(here: Here) -> int:
    """A function of this package, called where dynamo traces: it runs as it is."""
    graphs: list[Any] = []

    def backend(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    tensor = torch.ones(3)
    torch.compile(dist.group.WORLD.allreduce, backend=backend)([tensor]).wait()
    assert tensor.tolist() == [float(here.size)] * 3
    return len(graphs)


@_TWO
def test_dynamo_leaves_this_package_alone(ranks: Ranks) -> None:
    assert ranks.run(seen) == [0] * 2
