# SPDX-License-Identifier: MIT
"""BaguaStrategy: a fit is attach by hand, and everything else that a Trainer does still works."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.algorithms.models import SMALL_BUCKETS, attached, backward, ddp, inside, same_on_all_ranks
from tests.support.rank import Here
from tests.support.ranks import Ranks, refusal
from tests.support.tiers import variants

pytest.importorskip("lightning.pytorch", reason="lightning is not installed")

import lightning.pytorch as pl

from bagua_net.algorithms import (
    Auto,
    ByteGrad,
    Decentralized,
    DiLoCo,
    GradientAllReduce,
    QAdam,
    attach,
)
from bagua_net.lightning import BaguaStrategy
from tests.algorithms.apart import Alone, Apart
from tests.algorithms.learner import (
    RATE,
    Fails,
    Learner,
    Loader,
    SavesAt,
    WithQAdam,
    equal,
    fit,
    launched,
    strategy,
    trainer,
    weights,
)

BACKENDS = variants("bagua_net", nightly=["gloo"])
STEPS = 6


def _threads() -> set[threading.Thread]:
    """Of algorithms. Those of models that earlier tests have dropped may still end."""
    return {thread for thread in threading.enumerate() if thread.name.startswith("bagua_net bytegrad")}


# ---- a fit is attach by hand ----


def _by_hand(here: Here, backend: str, algorithm: Any, steps: int, clip: float = 0.0) -> dict[str, torch.Tensor]:
    model = ddp(here, backend, find_unused_parameters=True)
    optimizer = torch.optim.SGD(model.parameters(), RATE, momentum=0.9)
    comm = attach(model, optimizer, algorithm)
    for step in range(steps):
        optimizer.zero_grad()
        backward(here, model, step)
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
    comm.detach()
    return weights(inside(model))


def _fits(here: Here, backend: str, algorithm: Any) -> None:
    before = _threads()
    with launched(here):
        used = strategy(here, backend, algorithm)
        got = weights(fit(here, used, STEPS))
    assert equal(got, _by_hand(here, backend, algorithm, STEPS))
    assert same_on_all_ranks(here, got)
    assert used.bagua is None, "it goes on after the fit"
    assert _threads() <= before


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "algorithm",
    ["bytegrad", ByteGrad(bits=4, block=64), "allreduce", GradientAllReduce(wire="bfloat16")],
    ids=["bytegrad", "4-bits", "allreduce", "bfloat16"],
)
def test_a_fit_is_attach_by_hand(two: Ranks, algorithm: Any, backend: str) -> None:
    two.run(_fits, backend, algorithm)


def _clips(here: Here) -> None:
    with launched(here):
        got = weights(fit(here, strategy(here), STEPS, gradient_clip_val=0.05))
    assert equal(got, _by_hand(here, "bagua_net", "bytegrad", STEPS, clip=0.05))
    assert not equal(got, _by_hand(here, "bagua_net", "bytegrad", STEPS)), "nothing was clipped"


def test_gradients_are_clipped_after_they_were_averaged(two: Ranks) -> None:
    two.run(_clips)


class Counts(pl.Callback):  # type: ignore[misc]
    """What the algorithm has counted at the end of each step."""

    def __init__(self) -> None:
        self.elements: list[float] = []

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        self.elements.append(trainer.strategy.bagua.stats()["elements"])


def _accumulates(here: Here) -> None:
    counts = Counts()
    with launched(here):
        learner = fit(here, strategy(here), 4, accumulate_grad_batches=2, callbacks=[counts])
    elements = sum(each.numel() for each in learner.parameters())
    assert counts.elements == [0, elements, elements, 2 * elements]
    assert same_on_all_ranks(here, weights(learner))


def test_accumulation_sends_once_for_several_batches(two: Ranks) -> None:
    two.run(_accumulates)


def _mixes(here: Here) -> None:
    with launched(here):
        learner = fit(here, strategy(here), STEPS, precision="bf16-mixed")
    got = weights(learner)
    assert same_on_all_ranks(here, got)
    assert {each.dtype for each in got.values()} == {torch.float32}
    assert not equal(got, _by_hand(here, "bagua_net", "bytegrad", STEPS)), "nothing was in bfloat16"


def test_bfloat16_mixed(two: Ranks) -> None:
    two.run(_mixes)


class Scales(pl.Callback):  # type: ignore[misc]
    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        comm = trainer.strategy.bagua
        assert comm._context.scaler is trainer.precision_plugin.scaler
        self.last = comm.state_dict()["state"]["scale"]


def _scaled(here: Here) -> float:
    scales = Scales()
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=1)
    with launched(here):
        plugin = pl.plugins.MixedPrecision("16-mixed", "cpu", scaler)
        learner = fit(here, strategy(here), 3, plugins=[plugin], callbacks=[scales])
    assert same_on_all_ranks(here, weights(learner))
    return float(scales.last)


def test_the_precision_plugins_scaler_is_followed(two: Ranks) -> None:
    assert two.run(_scaled) == [512.0, 512.0], "the scale after the third step"


def _unused(here: Here) -> None:
    with launched(here):
        auto = strategy(here, algorithm=Auto(trial_steps=1), find_unused_parameters=False, static_graph=True)
        learner = fit(here, auto, 12)
    assert same_on_all_ranks(here, weights(learner))


def test_auto_on_a_static_graph(two: Ranks) -> None:
    two.run(_unused)


# ---- without a fit ----


class Looks(Learner):
    """Whether an algorithm is at work, in each step without training."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, bool]] = []

    def _look(self, where: str) -> None:
        self.seen.append((where, self.trainer.strategy.bagua is not None))

    def validation_step(self, data: Any, number: int) -> None:
        self._look("fit" if self.trainer.state.fn == "fit" else "validate")
        super().validation_step(data, number)

    def test_step(self, data: Any, number: int) -> None:
        self._look("test")
        super().test_step(data, number)

    def predict_step(self, data: Any, number: int) -> torch.Tensor:
        self._look("predict")
        return super().predict_step(data, number)


def _evaluates(here: Here) -> None:
    before = _threads()
    with launched(here):
        made = trainer(here, strategy(here))
        learner = Looks()
        made.fit(learner, Loader(here, 2), Loader(here, 2))
        for evaluate in (made.validate, made.test):
            (metrics,) = evaluate(learner, Loader(here, 2), verbose=False)
            assert metrics["loss"] > 0
        predicted = made.predict(learner, Loader(here, 2))
        assert [each.shape for each in predicted] == [(8, 5), (8, 5)]
        assert set(learner.seen) == {("fit", True), ("validate", False), ("test", False), ("predict", False)}
        made.fit_loop.max_epochs = 2
        made.fit(learner, Loader(here, 2))
    assert same_on_all_ranks(here, weights(learner))
    assert _threads() <= before


def test_validate_test_and_predict_attach_nothing_and_another_fit_follows(two: Ranks) -> None:
    two.run(_evaluates)


# ---- by name ----


def _by_name(here: Here, package: str) -> str:
    import importlib

    package_of = importlib.import_module(package)
    with launched(here):
        made = package_of.Trainer(accelerator="cpu", devices=here.size, strategy="bagua", logger=False)
    assert isinstance(made.strategy, package_of.strategies.DDPStrategy)
    return repr(made.strategy._algorithm)


@pytest.mark.parametrize("package", ["lightning.pytorch", "pytorch_lightning"])
def test_importing_makes_the_name_known(two: Ranks, package: str) -> None:
    pytest.importorskip(package, reason=f"{package} is not installed")
    assert two.run(_by_name, package) == [repr(ByteGrad())] * 2


# ---- algorithms that average weights ----


class SeesGradients(pl.Callback):  # type: ignore[misc]
    def __init__(self) -> None:
        self.sums: list[float] = []

    def on_before_optimizer_step(self, trainer: pl.Trainer, module: Learner, optimizer: Any) -> None:
        self.sums.append(float(module.net[0].weight.grad.sum()))


def _before_steps(here: Here, optimizer: str) -> None:
    class Chosen(Learner):
        def configure_optimizers(self) -> Any:
            if optimizer == "lbfgs":
                return torch.optim.LBFGS(self.parameters(), RATE, max_iter=3)
            return super().configure_optimizers()

    seen = SeesGradients()
    with launched(here):
        learner = fit(here, strategy(here, algorithm=Apart()), 3, Chosen(), callbacks=[seen])
    assert not same_on_all_ranks(here, weights(learner))
    if optimizer == "sgd":
        assert Alone.gradients_before_step == seen.sums
    else:
        assert len(Alone.gradients_before_step) == 3
        assert len(set(seen.sums)) > 3, "LBFGS saw one gradient several times"


@pytest.mark.parametrize("optimizer", ["sgd", "lbfgs"])
def test_hooks_on_the_optimizers_step_come_after_backward(two: Ranks, optimizer: str) -> None:
    two.run(_before_steps, optimizer)


# ---- every kind of algorithm ----


def _as_by_hand(here: Here, algorithm: Any, path: str) -> None:
    """And a run that is resumed in the middle ends likewise."""
    made = WithQAdam if isinstance(algorithm, QAdam) else Learner
    learner = made()
    optimizer = learner.configure_optimizers()
    arguments = {"bucket_cap_mb": SMALL_BUCKETS, "find_unused_parameters": True}
    model, comm = attached(here, "bagua_net", learner.net, optimizer, algorithm, **arguments)
    for step in range(STEPS):
        optimizer.zero_grad()
        backward(here, model, step)
        optimizer.step()
    if algorithm.averages == "weights":
        comm.pause()
    comm.detach()
    want = weights(learner)
    assert same_on_all_ranks(here, want)
    with launched(here):
        used = strategy(here, algorithm=algorithm)
        assert equal(weights(fit(here, used, STEPS, made(), callbacks=[SavesAt(path, 3)])), want)
        assert equal(weights(fit(here, strategy(here, algorithm=algorithm), STEPS, made(), ckpt_path=path)), want)


@pytest.mark.parametrize(
    "algorithm",
    [QAdam(block=64), DiLoCo(steps=4), Decentralized()],
    ids=["momentum", "moves", "weights"],
)
def test_a_fit_with_momentum_or_weights_is_attach_by_hand(two: Ranks, algorithm: Any, tmp_path: Path) -> None:
    two.run(_as_by_hand, algorithm, str(tmp_path / "saved.ckpt"))


# ---- several optimizers ----


class TwoOptimizers(Learner):
    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, data: Any, number: int) -> None:
        for optimizer in self.optimizers():
            loss = self._loss(data)
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()

    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD(self.net[:3].parameters(), RATE), torch.optim.SGD(self.net[3:].parameters(), RATE)]


def _manual(here: Here, backend: str) -> None:
    with launched(here):
        before = weights(Learner())
        got = weights(fit(here, strategy(here, backend), 3, TwoOptimizers()))
    assert same_on_all_ranks(here, got)
    assert not any(torch.equal(before[name], got[name]) for name in got)


@pytest.mark.parametrize("backend", BACKENDS)
def test_manual_optimization_with_two_optimizers(two: Ranks, backend: str) -> None:
    two.run(_manual, backend)


# ---- what is refused ----


def _two_apart(here: Here) -> str:
    with launched(here):
        return refusal(lambda: fit(here, strategy(here, algorithm=Apart()), 1, TwoOptimizers()))


def _clipped_momentum(here: Here) -> str:
    class Momentum(Apart):
        averages = "momentum"

    with launched(here):
        return refusal(lambda: fit(here, strategy(here, algorithm=Momentum()), 1, gradient_clip_val=1.0))


def _other_hook(here: Here) -> str:
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook

    return refusal(lambda: BaguaStrategy(ddp_comm_hook=bf16_compress_hook))


def _settings_as_arguments(here: Here) -> str:
    return refusal(lambda: BaguaStrategy("bytegrad", bits=4))


def _flatten(here: Here) -> str:
    return refusal(lambda: BaguaStrategy("bytegrad", flatten=True))


def _unknown_name(here: Here) -> str:
    return refusal(lambda: BaguaStrategy("bitegrad"))


def _environment(here: Here) -> str:
    def taken() -> None:
        from bagua_net.lightning import BaguaEnvironment  # noqa: F401

    return refusal(taken)


def _mixed_settings(here: Here) -> str:
    with launched(here):
        mixed = strategy(here, algorithm=ByteGrad(bits=8 if here.rank == 0 else 4))
        return refusal(lambda: fit(here, mixed, 1))


@pytest.mark.parametrize(
    ("what", "words"),
    [
        (_two_apart, ["ValueError", "one optimizer, not with 2"]),
        (_clipped_momentum, ["ValueError", "gradient_clip_val=1.0", "leave it out"]),
        (_other_hook, ["ValueError", "ddp_comm_hook", "DDPStrategy"]),
        (_settings_as_arguments, ["TypeError", "'bits'", "ByteGrad(bits=4)"]),
        (_flatten, ["TypeError", "'flatten'", "gradient_as_bucket_view"]),
        (_unknown_name, ["ValueError", "'bitegrad'", "bytegrad"]),
        (_environment, ["ImportError", "TorchElasticEnvironment", "torchrun"]),
        (_mixed_settings, ["ValueError", "bits: 8 on rank 0, 4 on rank 1"]),
    ],
)
def test_what_is_refused_is_refused_in_a_line_that_says_what_to_do(
    two: Ranks, what: Callable[[Here], str], words: list[str]
) -> None:
    for refused in two.run(what):
        assert "\n" not in refused
        assert all(word in refused for word in words), refused


# ---- a step that fails ----


def _is_dropped(here: Here) -> None:
    Alone.stopped = False
    with launched(here):
        assert "of this step" in refusal(lambda: fit(here, strategy(here, algorithm=Apart()), 4, Fails()))
        assert not Alone.stopped, "it may have waited for the others"
        fit(here, strategy(here, algorithm=Apart()), 2)
        assert Alone.stopped


def test_after_an_exception_the_algorithm_is_dropped(two: Ranks) -> None:
    two.run(_is_dropped)


def _dies(here: Here) -> str:
    class Says(Learner):
        def training_step(self, data: Any, number: int) -> torch.Tensor:
            here.say(f"step/{number}/{here.rank}")
            return super().training_step(data, number)

    with launched(here):
        return refusal(lambda: fit(here, strategy(here), 10_000, Says()))


@pytest.mark.nightly
def test_a_rank_that_dies_ends_the_others_with_an_error() -> None:
    with Ranks(2) as ranks:
        ranks.begin(_dies)
        ranks.hear("step/3/0", "step/3/1")
        ranks.kill(1)
        outcome = ranks.collect()[0]
        assert outcome.error == "", outcome.where
        assert "rank 1" in outcome.value, outcome.value
