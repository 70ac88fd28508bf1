# SPDX-License-Identifier: MIT
"""bagua_net.compat: Bagua's names and its with_bagua. Its collectives: test_collectives_of_compat.py; a script in its
style is a job of test_jobs_of_algorithms.py."""

from __future__ import annotations

import contextlib
import importlib
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from bagua_net import data
from bagua_net.algorithms import Algorithm, ByteGrad, GradientAllReduce, QAdamOptimizer, attach
from bagua_net.algorithms._registry import ALGORITHMS
from bagua_net.compat import _communication as communication
from bagua_net.compat import install
from bagua_net.compat._algorithms import _CONSTRUCTORS, settings
from bagua_net.compat._communication import BaguaProcessGroup
from bagua_net.compat._contrib import fuse_optimizer
from bagua_net.compat._install import _Finder, install_for_workers
from bagua_net.compat._module import distributed_data_parallel, with_bagua
from bagua_net.compat._names import GONE, KEPT
from tests.algorithms.apart import Apart
from tests.algorithms.models import WIDTH, backward, ddp, group_of, inside, net, same_on_all_ranks
from tests.support.rank import Here
from tests.support.ranks import Ranks, refusal
from tests.support.tiers import variants

BACKENDS = variants("bagua_net", nightly=["gloo"])
RATE = 0.05


# ---- names ----


@pytest.fixture(scope="module")
def alone() -> Iterator[Ranks]:
    """A process of its own: install changes it."""
    with Ranks(1) as ranks:
        yield ranks


def _only_once_installed(here: Here) -> None:
    assert not hasattr(nn.Module, "with_bagua")
    assert refusal(partial(importlib.import_module, "bagua")).startswith("ModuleNotFoundError: No module named 'bagua'")
    install()
    install()
    assert sum(isinstance(finder, _Finder) for finder in sys.meta_path) == 1
    assert nn.Module.with_bagua is with_bagua
    import bagua.torch_api as bagua
    from bagua.torch_api.algorithms import Algorithm as Bagua
    from bagua.torch_api.algorithms import bytegrad

    assert bagua.algorithms.bytegrad is bytegrad
    assert Bagua.init("bytegrad") == bytegrad.ByteGradAlgorithm() == ByteGrad(error_feedback=False)
    assert bagua.init_process_group is bagua.communication.init_process_group is communication.init_process_group
    assert (bagua.get_rank(), bagua.get_world_size()) == (0, 1)
    assert not hasattr(bagua, "no_such_name")


@pytest.mark.gate
def test_names_are_there_once_installed(alone: Ranks) -> None:
    alone.run(_only_once_installed)


def _taken(name: str) -> Any:
    """As `from a.b import c` takes it."""
    taken: dict[str, Any] = {}
    module, _, last = name.rpartition(".")
    exec(f"from {module} import {last} as taken" if module else f"import {last} as taken", taken)
    return taken["taken"]


def _kept_names(here: Here) -> dict[str, str]:
    install()
    names = [f"{module}.{name}" for module, names in KEPT.items() for name in names]
    return {name: refusal(partial(_taken, name)) for name in [*KEPT, *names]}


def test_every_kept_name_is_something(alone: Ranks) -> None:
    (found,) = alone.run(_kept_names)
    assert "bagua.torch_api.allreduce" in found
    assert {name: said for name, said in found.items() if said != "accepted"} == {}


def _gone_names(here: Here) -> dict[str, str]:
    install()
    below = {"bagua.service.autotune_service": "", "bagua.torch_api.model_parallel.moe.MoE": ""}
    return {name: refusal(partial(_taken, name)) for name in [*GONE, *below]}


def test_every_other_name_of_bagua_says_what_to_use(alone: Ranks) -> None:
    (found,) = alone.run(_gone_names)
    for name, said in found.items():
        line = re.fullmatch(
            r"(ImportError|ModuleNotFoundError): bagua_net\.compat: (?P<name>[\w.]+) is not kept; .+", said
        )
        assert line, f"{name}: {said}"
        assert f"{name}.".startswith(f"{line['name']}."), f"{name}: {said}"


def _no_such_module(here: Here) -> str:
    install()
    return refusal(partial(importlib.import_module, "bagua.torch_api.speed"))


def test_a_module_that_bagua_never_had(alone: Ranks) -> None:
    assert "no module bagua.torch_api.speed" in alone.run(_no_such_module)[0]


@contextlib.contextmanager
def _not_installed(path: list[str]) -> Iterator[None]:
    """As in a process without install, with another sys.path."""
    before = sys.path[:], sys.meta_path[:]
    hidden = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "bagua"}
    sys.path[:] = path
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _Finder)]
    for name in hidden:
        del sys.modules[name]
    try:
        yield
    finally:
        sys.path[:], sys.meta_path[:] = before
        for name in [name for name in sys.modules if name.partition(".")[0] == "bagua"]:
            del sys.modules[name]
        sys.modules.update(hidden)


def _beside_another(here: Here, folder: str) -> str:
    with _not_installed([folder, *sys.path]):
        return refusal(install)


def test_another_package_of_that_name_is_left_alone(alone: Ranks, tmp_path: Path) -> None:
    (tmp_path / "bagua").mkdir()
    (tmp_path / "bagua" / "__init__.py").touch()
    (said,) = alone.run(_beside_another, str(tmp_path))
    assert str(tmp_path) in said
    assert "uninstall it" in said


def _started_afresh(here: Here, folder: str) -> str:
    """As a worker that multiprocessing spawns: it has the script's sys.path."""
    with _not_installed(sys.path):
        install_for_workers()
        path = list(sys.path)
    ways: tuple[Callable[[], None], ...] = (lambda: None, install)  # a script may call that, too
    for begins in ways:
        with _not_installed(path):
            begins()
            import bagua.torch_api as bagua

            assert bagua.allreduce is communication.allreduce
            assert sum(isinstance(finder, _Finder) for finder in sys.meta_path) == 1
            assert sys.path == path, "what this process starts would not find it"
    with _not_installed([folder, *path]):
        return refusal(install_for_workers)


def test_a_process_that_is_started_afresh_finds_the_names(alone: Ranks, tmp_path: Path) -> None:
    (tmp_path / "bagua").mkdir()
    (tmp_path / "bagua" / "__init__.py").touch()
    (said,) = alone.run(_started_afresh, str(tmp_path))
    assert "uninstall it" in said, "another package is left alone"


# ---- contrib ----


def _cached(here: Here, folder: str) -> list[str]:
    """As in Bagua's documents, with a directory, so that this test leaves nothing behind."""
    install()
    from bagua.torch_api.contrib import CachedDataset, CacheLoader

    hosts = [{"host": "10.0.0.1", "port": "7000"}]
    loader = CacheLoader("redis", "loader", hosts=hosts, cluster_mode=True, capacity_per_node=2**30, directory=folder)
    assert loader.get(3, lambda key: key**2) == 9
    squares = [torch.tensor(number**2) for number in range(3)]
    dataset = CachedDataset(squares, backend="redis", dataset_name="squares", writer_buffer_size=20, directory=folder)
    assert [int(each) for each in dataset] == [0, 1, 4]
    assert (loader.num_keys(), dataset.cache_loader.num_keys()) == (1, 3)
    assert isinstance(dataset, data.CachedDataset)
    return [
        refusal(lambda: CachedDataset(squares, backend="redis")),
        refusal(lambda: CacheLoader()),
        refusal(lambda: CacheLoader(dataset_name="a", key_prefix="b")),
    ]


def test_caches_take_bagua_s_arguments(alone: Ranks, tmp_path: Path) -> None:
    (said,) = alone.run(_cached, str(tmp_path))
    assert ["a name of its own" in each for each in said] == [True, True, False]
    assert "key_prefix" in said[2]


def _fused(here: Here) -> None:
    install()
    from bagua.torch_api.contrib.fuse.optimizer import fuse_optimizer

    steps = []
    for do_flatten in (True, False):
        model = net()
        optimizer = fuse_optimizer(torch.optim.RMSprop(model.parameters(), RATE), do_flatten=do_flatten)
        assert optimizer.param_groups[0]["foreach"]
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        step: Callable[[], Any] = optimizer.fuse_step if do_flatten else optimizer.step
        for number in range(2):
            optimizer.zero_grad()
            backward(here, model, number)
            step()
            scheduler.step()
        steps.append([each.detach().clone() for each in model.parameters()])
    assert all(map(torch.equal, *steps))


def test_a_fused_optimizer_steps_by_either_name(alone: Ranks) -> None:
    alone.run(_fused)


def _foreach(optimizer: torch.optim.Optimizer) -> Any:
    assert fuse_optimizer(optimizer) is optimizer
    optimizer.param_groups[0]["params"][0].grad = torch.ones(2)
    optimizer.fuse_step()
    return optimizer.param_groups[0].get("foreach")


def test_fuse_optimizer_leaves_what_is_chosen_or_impossible(caplog: pytest.LogCaptureFixture) -> None:
    parameters = [nn.Parameter(torch.ones(2))]
    assert _foreach(torch.optim.SGD(parameters, RATE)) is True
    assert _foreach(torch.optim.SGD(parameters, RATE, foreach=False)) is False
    assert _foreach(torch.optim.Adam(parameters, RATE, fused=True)) is None
    assert _foreach(torch.optim.Adam(parameters, torch.tensor(RATE))) is None
    assert caplog.text == ""
    fuse_optimizer(torch.optim.SparseAdam(parameters, RATE))
    assert "leaves SparseAdam as it is" in caplog.text


# ---- settings ----


def test_constructors_give_the_settings_of_this_package() -> None:
    assert settings("gradient_allreduce", True) == GradientAllReduce(hierarchical=True)
    assert settings("gradient_allreduce", hierarchical=False, average=True) == GradientAllReduce()
    assert settings("bytegrad", hierarchical=False) == ByteGrad(error_feedback=False), "Bagua has none"
    for name in ALGORITHMS.keys() & _CONSTRUCTORS.keys():
        assert isinstance(settings(name), Algorithm)


class _Derived:
    def __init__(self) -> None:
        from bagua_net.compat._algorithms import Algorithm as Bagua

        type("Mine", (Bagua,), {})


@pytest.mark.parametrize(
    ("what", "words"),
    [
        (partial(settings, "bytegrad", average=False), ["ValueError", "ByteGradAlgorithm(average=False)", "block"]),
        (partial(settings, "bytegrad", bits=4), ["TypeError", "ByteGradAlgorithm", "'bits'"]),
        (partial(settings, "bitegrad"), ["ValueError", "'bitegrad'", "bytegrad"]),
        (_Derived, ["TypeError", "Mine", "register_comm_hook"]),
        (BaguaProcessGroup(None).get_intra_node_communicator, ["RuntimeError", "new_subgroups"]),
    ],
)
def test_what_has_no_counterpart_says_so(what: Callable[[], Any], words: list[str]) -> None:
    said = refusal(what)
    assert "\n" not in said
    assert all(word in said for word in words), said


# ---- with_bagua ----


def _trained(here: Here, model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    for step in range(4):
        optimizer.zero_grad()
        backward(here, model, step)
        optimizer.step()
    return {name: each.detach().clone() for name, each in inside(model).named_parameters()}


def _stays_itself(here: Here, backend: str) -> None:
    torch.manual_seed(here.rank)
    model = net(here.rank)
    names = list(model.state_dict())
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    group = BaguaProcessGroup(here.gloo if backend == "gloo" else dist.group.WORLD)
    assert with_bagua(model, [optimizer], settings("bytegrad"), group) is model
    assert list(model.state_dict()) == names
    got = _trained(here, model, optimizer)
    plain = ddp(here, backend, net(0), bucket_cap_mb=25)
    other = torch.optim.SGD(plain.parameters(), RATE)
    attach(plain, other, ByteGrad(error_feedback=False))
    want = _trained(here, plain, other)
    assert all(torch.equal(got[name], want[name]) for name in want)
    elements = sum(each.numel() for each in model.parameters())
    counted = []
    for change in (None, model.bagua_algorithm.abort, model.bagua_algorithm.resume):
        if change is not None:
            change(model)
            _trained(here, model, optimizer)
        counted.append(model.bagua_ddp.bagua.stats()["elements"])
    assert counted == [4 * elements, 4 * elements, 8 * elements], "none in the pause"


@pytest.mark.parametrize("backend", BACKENDS)
def test_with_bagua_leaves_the_model_what_it_is(two: Ranks, backend: str) -> None:
    two.run(_stays_itself, backend)


def _evaluates_alone(here: Here) -> None:
    model = nn.Sequential(nn.Linear(24, 5), nn.BatchNorm1d(5))
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    with_bagua(model, [optimizer], settings("bytegrad"))
    _trained(here, model, optimizer)
    model.eval()
    if here.rank == 0:
        model(torch.zeros(2, 24))
    model.train()
    _trained(here, model, optimizer)


def test_one_rank_may_evaluate_alone(two: Ranks) -> None:
    two.run(_evaluates_alone)


def _warnings_of(call: Callable[[], Any]) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    return [str(each.message) for each in caught if "bagua_net" in str(each.message)]


def _trains_in_evaluation_mode(here: Here, algorithm: str) -> list[str]:
    """What is said of it. Nothing is, of training and of evaluation without ``torch.no_grad``."""
    model = net()
    with_bagua(model, [torch.optim.SGD(model.parameters(), RATE)], algorithm)
    model.eval()
    assert _warnings_of(lambda: model(torch.ones(2, WIDTH))) == []
    said = _warnings_of(partial(backward, here, model, 0))
    assert _warnings_of(partial(backward, here, model, 1)) == []
    model.train()
    assert _warnings_of(partial(backward, here, model, 2)) == []
    model.bagua_ddp.bagua.detach()
    return said


def test_gradients_of_evaluation_mode_are_warned_of_once(two: Ranks) -> None:
    for said in two.run(_trains_in_evaluation_mode, "gradient_allreduce"):
        assert len(said) == 1
        assert "call model.train() before it" in said[0]
    assert two.run(_trains_in_evaluation_mode, "diloco") == [[], []]


def _again(here: Here) -> None:
    model = net()
    calls: list[int] = []
    model.register_forward_hook(lambda *_: calls.append(1))
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    with_bagua(model, [optimizer], settings("bytegrad"))
    first = model.bagua_ddp
    with_bagua(model, [optimizer], settings("gradient_allreduce"))
    assert "detached" in refusal(first.bagua.stats)
    got = _trained(here, model, optimizer)
    assert same_on_all_ranks(here, got)
    assert len(calls) == 4, "its hooks ran more than once a step"


def test_with_bagua_again_takes_the_place_of_the_first(two: Ranks) -> None:
    two.run(_again)


def _again_with_a_forward_of_its_own(here: Here) -> None:
    model = net()
    calls: list[int] = []
    before = model.forward

    def own(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return before(x)

    model.forward = own
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    for algorithm in ("bytegrad", "gradient_allreduce"):
        with_bagua(model, [optimizer], settings(algorithm))
        calls.clear()
        _trained(here, model, optimizer)
        assert len(calls) == 4, algorithm


def test_with_bagua_again_keeps_the_instances_forward(two: Ranks) -> None:
    two.run(_again_with_a_forward_of_its_own)


def _keeps_buffers(here: Here) -> None:
    """Equal at the beginning, and then each rank's own."""
    torch.manual_seed(here.rank)
    model = nn.Sequential(nn.Linear(WIDTH, 8), nn.BatchNorm1d(8), nn.Linear(8, 5))
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    with_bagua(model, optimizer, Apart())
    assert same_on_all_ranks(here, dict(model.named_parameters()))
    _trained(here, model, optimizer)
    model.bagua_ddp(torch.zeros(2, WIDTH))
    assert not same_on_all_ranks(here, {"mean": model[1].running_mean})


def test_ranks_that_train_apart_keep_their_buffers(two: Ranks) -> None:
    two.run(_keeps_buffers)


def _several(here: Here) -> str:
    model = net()
    halves = [torch.optim.SGD(model[:3].parameters(), RATE), torch.optim.SGD(model[3:].parameters(), RATE)]
    with_bagua(model, halves, settings("bytegrad"))
    return refusal(lambda: with_bagua(net(), halves, Apart()))


def test_one_optimizer_for_what_averages_weights(two: Ranks) -> None:
    for said in two.run(_several):
        assert "apart works with one optimizer, not with 2" in said


def _ignores(here: Here) -> str:
    model = net()
    model._bagua_params_and_buffers_to_ignore = ["0.weight"]
    return refusal(lambda: with_bagua(model, [torch.optim.SGD(model.parameters(), RATE)], settings("bytegrad")))


def test_parameters_to_ignore_are_refused(two: Ranks) -> None:
    for said in two.run(_ignores):
        assert "requires_grad_(False)" in said


def _wrapper(here: Here) -> str:
    model = distributed_data_parallel(net(), algorithm=settings("bytegrad"))
    assert isinstance(model, DistributedDataParallel)
    assert model.bagua.algorithm == ByteGrad(error_feedback=False)
    plain = distributed_data_parallel(net())
    assert plain.bagua.algorithm == GradientAllReduce()
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    assert same_on_all_ranks(here, _trained(here, model, optimizer))
    return refusal(lambda: distributed_data_parallel(net(), algorithm=Apart()))


def test_baguas_wrapper(two: Ranks) -> None:
    for said in two.run(_wrapper):
        assert "no optimizer was given" in said


# ---- the optimizers of rank 0 ----


def _wrapped(model: nn.Module, optimizers: Any, group: Any, way: str, algorithm: str = "bytegrad") -> nn.Module:
    if way == "with_bagua":
        return with_bagua(model, optimizers, settings(algorithm), group)
    return distributed_data_parallel(model, process_group=group, optimizers=optimizers, algorithm=settings(algorithm))


def _stepped_on(here: Here, backend: str, way: str, rank: int) -> int:
    """As where a script loads its checkpoint on one rank alone. How many parameters have a state."""
    model = net(here.rank)
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE if here.rank == 0 else 1.0)
    if here.rank == rank:
        _trained(here, model, optimizer)
    wrapped = _wrapped(model, [optimizer], group_of(here, backend), way)
    having = len(optimizer.state)
    assert same_on_all_ranks(here, _trained(here, wrapped, optimizer))
    moments = {str(number): state["exp_avg_sq"] for number, state in enumerate(optimizer.state.values())}
    assert same_on_all_ranks(here, moments)
    assert optimizer.param_groups[0]["lr"] == RATE
    assert {float(state["step"]) for state in optimizer.state.values()} == {8.0 if rank == 0 else 4.0}
    return having


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("way", ["with_bagua", "DistributedDataParallel"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_all_ranks_begin_with_the_optimizer_of_rank_0(two: Ranks, backend: str, way: str, rank: int) -> None:
    assert two.run(_stepped_on, backend, way, rank) == [8 if rank == 0 else 0] * 2


def _qadam_on_rank_0(here: Here) -> None:
    model = net()
    optimizer = QAdamOptimizer(model.parameters(), RATE, warmup_steps=6)
    if here.rank == 0:
        _trained(here, model, optimizer)
    with_bagua(model, optimizer, settings("qadam"))
    assert optimizer.steps == 4, "of rank 0, in the groups"
    assert same_on_all_ranks(here, _trained(here, model, optimizer))


def test_an_algorithm_that_compares_optimizers_sees_them_equal(two: Ranks) -> None:
    two.run(_qadam_on_rank_0)


def _new_ones(here: Here) -> None:
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), lr=torch.tensor(RATE))
    group = optimizer.param_groups[0]
    with_bagua(model, [optimizer], settings("bytegrad"))
    assert optimizer.param_groups[0] is group, "a script may have it in its hands"
    assert not optimizer.state


def test_new_optimizers_stay_as_they_are(two: Ranks) -> None:
    two.run(_new_ones)


def _others(here: Here, what: str) -> str:
    model = net()
    optimizer: Any = torch.optim.SGD(model.parameters(), RATE)
    if here.rank == 1:
        optimizer = {
            "number": [optimizer, optimizer],
            "groups": torch.optim.SGD([{"params": [each]} for each in model.parameters()], RATE),
            "class": QAdamOptimizer(model.parameters(), RATE),
        }[what]
    return refusal(lambda: with_bagua(model, optimizer, settings("bytegrad")))


def _not_to_be_sent(here: Here) -> str:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), RATE)
    if here.rank == 0:
        optimizer.param_groups[0]["schedule"] = lambda step: RATE
    return refusal(lambda: with_bagua(model, optimizer, settings("bytegrad")))


def test_an_optimizer_that_cannot_be_sent_is_told_to_all_ranks(two: Ranks) -> None:
    for said in two.run(_not_to_be_sent):
        assert "the optimizers' states of rank 0" in said, said
        assert "it cannot send them" in said, said


@pytest.mark.parametrize(
    ("what", "words"),
    [("number", "1 were given there, and 2 here"), ("groups", "SGD: "), ("class", "QAdamOptimizer: ")],
)
def test_ranks_with_other_optimizers_are_refused_on_all_ranks(two: Ranks, what: str, words: str) -> None:
    for said in two.run(_others, what):
        assert said.startswith(
            "ValueError: bagua_net.compat: with_bagua: the optimizers' states of rank 0 are nothing for"
        )
        assert f"rank 1: {words}" in said, said
        assert "\n" not in said
