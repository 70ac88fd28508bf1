# SPDX-License-Identifier: MIT
"""BaguaStrategy: a fit is attach by hand, and everything else that a Trainer does still works."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from models import SMALL_BUCKETS, backward, ddp, inside, same_on_all_ranks
from rank import Here
from ranks import Ranks, refusal
from torch import nn

pytest.importorskip("lightning.pytorch", reason="lightning is not installed")

import lightning.pytorch as pl
from apart import Alone, Apart
from learner import RATE, Learner, Loader, fit, launched, strategy, trainer, weights

from bagua_net.algorithms import (
    Auto,
    ByteGrad,
    Decentralized,
    DiLoCo,
    GradientAllReduce,
    QAdam,
    QAdamOptimizer,
    attach,
    with_bagua,
)
from bagua_net.lightning import BaguaStrategy

BACKENDS = ["bagua_net", "gloo"]
STEPS = 6


def _equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.values(), other.values(), strict=True))


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
    assert _equal(got, _by_hand(here, backend, algorithm, STEPS))
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
    assert _equal(got, _by_hand(here, "bagua_net", "bytegrad", STEPS, clip=0.05))
    assert not _equal(got, _by_hand(here, "bagua_net", "bytegrad", STEPS)), "nothing was clipped"


def test_gradients_are_clipped_after_they_were_averaged(two: Ranks) -> None:
    two.run(_clips)


class Counts(pl.Callback):
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
    assert not _equal(got, _by_hand(here, "bagua_net", "bytegrad", STEPS)), "nothing was in bfloat16"


def test_bfloat16_mixed(two: Ranks) -> None:
    two.run(_mixes)


class Scales(pl.Callback):
    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        comm = trainer.strategy.bagua
        assert comm.job.scaler is trainer.precision_plugin.scaler
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


# ---- checkpoints ----


class SavesAt(pl.Callback):
    def __init__(self, path: str, step: int) -> None:
        self.path, self.step = path, step

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        if trainer.global_step == self.step:
            trainer.save_checkpoint(self.path)


def _four_bits(here: Here, backend: str = "bagua_net", **arguments: Any) -> BaguaStrategy:
    return strategy(here, backend, ByteGrad(bits=4, block=32), **arguments)


def _resumes(here: Here, backend: str, path: str) -> None:
    with launched(here):
        whole = weights(fit(here, _four_bits(here, backend), STEPS, callbacks=[SavesAt(path, 3)]))
        saved = torch.load(path, weights_only=True)["bagua_net"]["ranks"]
        residuals = [rank["state"]["state"]["residuals"]["net.0.weight"] for rank in saved]
        assert len(residuals) == here.size
        assert not torch.equal(residuals[0], residuals[1])
        assert _equal(weights(fit(here, _four_bits(here, backend), STEPS, ckpt_path=path)), whole)
        anew = _four_bits(here, backend, state_in_checkpoints=False)
        fit(here, anew, STEPS, callbacks=[SavesAt(f"{path}.without", 3)])
        assert "bagua_net" not in torch.load(f"{path}.without", weights_only=True)
        without = weights(fit(here, _four_bits(here, backend), STEPS, ckpt_path=f"{path}.without"))
        assert not _equal(without, whole), "the residuals make no difference"
        anew = _four_bits(here, backend, state_in_checkpoints=False)
        assert _equal(weights(fit(here, anew, STEPS, ckpt_path=path)), without), "a state was loaded"


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_resumed_run_ends_where_an_uninterrupted_one_does(two: Ranks, backend: str, tmp_path: Path) -> None:
    two.run(_resumes, backend, str(tmp_path / "saved.ckpt"))


def _saves_afterwards(here: Here, path: str) -> None:
    with launched(here):
        made = trainer(here, _four_bits(here))
        made.fit(Learner(), Loader(here, 3))
        made.save_checkpoint(path)
        made.save_checkpoint(f"{path}.weights", weights_only=True)
        during = SavesAt(f"{path}.during", 3)
        fit(here, _four_bits(here), 3, callbacks=[during])
    one, other = (torch.load(each, weights_only=True)["bagua_net"]["ranks"] for each in (path, during.path))
    for a, b in zip(one, other, strict=True):
        assert _equal(a["state"]["state"]["residuals"], b["state"]["state"]["residuals"])
    assert "bagua_net" not in torch.load(f"{path}.weights", weights_only=True)


def test_a_checkpoint_after_the_fit_has_the_state_at_its_end(two: Ranks, tmp_path: Path) -> None:
    two.run(_saves_afterwards, str(tmp_path / "saved.ckpt"))


def _loads_afterwards(here: Here, path: str) -> None:
    """The state at the end of the fit is not that of weights which a test has loaded."""
    with launched(here):
        made, learner = trainer(here, _four_bits(here)), Learner()
        made.fit(learner, Loader(here, 3))
        made.save_checkpoint(path)
        made.test(learner, Loader(here, 1), verbose=False)
        made.save_checkpoint(f"{path}.tested")
        made.test(learner, Loader(here, 1), ckpt_path=path, verbose=False)
        made.save_checkpoint(f"{path}.loaded")
    assert "bagua_net" in torch.load(f"{path}.tested", weights_only=True)
    assert "bagua_net" not in torch.load(f"{path}.loaded", weights_only=True)


def test_a_checkpoint_of_loaded_weights_is_without_the_state(two: Ranks, tmp_path: Path) -> None:
    two.run(_loads_afterwards, str(tmp_path / "saved.ckpt"))


class Frozen(Learner):
    """Learner, after a layer was frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.net[0].requires_grad_(False)


def _spoiled(state: dict[str, Any], change: str) -> dict[str, Any]:
    """What a checkpoint has of all ranks, if they were other ones."""
    if change == "ranks":
        return {"ranks": state["ranks"] * 2}
    if change == "rank 1":
        residuals = state["ranks"][1]["state"]["state"]["residuals"]
        residuals["gone"] = residuals.pop("net.0.weight")
    return state


def _loads_what_does_not_fit(here: Here, path: str, change: str) -> list[str]:
    made = WithQAdam if change == "bits" else Learner
    algorithm = QAdam(block=64) if change == "bits" else ByteGrad(bits=4, block=32)
    with launched(here):
        fit(here, strategy(here, algorithm=algorithm), STEPS, made(), callbacks=[SavesAt(path, 3)])
        if here.rank == 0:
            checkpoint = torch.load(path, weights_only=True)
            state = checkpoint.pop("bagua_net")
            torch.save(checkpoint, f"{path}.without")
            torch.save(checkpoint | {"bagua_net": _spoiled(state, change)}, path)
        torch.distributed.barrier()
        made = Frozen if change == "frozen" else made
        algorithm = {"algorithm": GradientAllReduce(), "bits": QAdam(bits=1, block=64)}.get(change, algorithm)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            resumed = fit(here, strategy(here, algorithm=algorithm), STEPS, made(), ckpt_path=path)
        anew = fit(here, strategy(here, algorithm=algorithm), STEPS, made(), ckpt_path=f"{path}.without")
    assert resumed.trainer.global_step == STEPS
    assert same_on_all_ranks(here, weights(resumed))
    assert _equal(weights(resumed), weights(anew)), "a part of the state was loaded"
    return [str(each.message) for each in caught if "bagua_net.lightning" in str(each.message)]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("ranks", "of 4 ranks, and here are 2"),
        ("algorithm", "'bytegrad', and here 'allreduce'"),
        ("frozen", "the model has no such parameter"),
        ("bits", "QAdam(bits=8), and here QAdam(bits=1)"),
        ("rank 1", "elements for gone"),
    ],
)
def test_a_state_that_does_not_fit_is_named_and_left(two: Ranks, change: str, words: str, tmp_path: Path) -> None:
    said, nothing = two.run(_loads_what_does_not_fit, str(tmp_path / "saved.ckpt"), change)
    assert nothing == [], "rank 0 says it"
    assert len(said) == 1
    assert words in said[0]
    assert said[0].endswith("; the algorithm begins anew")


# ---- algorithms that average weights ----


class SeesGradients(pl.Callback):
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


def _resumes_apart(here: Here, path: str) -> None:
    with launched(here):
        whole = weights(fit(here, strategy(here, algorithm=Apart()), STEPS, callbacks=[SavesAt(path, 3)]))
        assert not same_on_all_ranks(here, whole)
        assert _equal(weights(fit(here, strategy(here, algorithm=Apart()), STEPS, ckpt_path=path)), whole)


def test_ranks_that_train_apart_resume_from_their_own_weights_and_momenta(two: Ranks, tmp_path: Path) -> None:
    two.run(_resumes_apart, str(tmp_path / "saved.ckpt"))


# ---- every kind of algorithm ----


class WithQAdam(Learner):
    def configure_optimizers(self) -> Any:
        return QAdamOptimizer(self.parameters(), 0.01, warmup_steps=2)


def _as_by_hand(here: Here, algorithm: Any, path: str) -> None:
    """And a run that is resumed in the middle ends likewise."""
    made = WithQAdam if isinstance(algorithm, QAdam) else Learner
    learner = made()
    optimizer = learner.configure_optimizers()
    arguments = {"bucket_cap_mb": SMALL_BUCKETS, "find_unused_parameters": True}
    model = with_bagua(learner.net, optimizer, algorithm, **arguments)
    for step in range(STEPS):
        optimizer.zero_grad()
        backward(here, model, step)
        optimizer.step()
    if model.bagua.algorithm.averages == "weights":
        model.bagua.abort()
    model.bagua.detach()
    want = weights(learner)
    assert same_on_all_ranks(here, want)
    with launched(here):
        used = strategy(here, algorithm=algorithm)
        assert _equal(weights(fit(here, used, STEPS, made(), callbacks=[SavesAt(path, 3)])), want)
        assert _equal(weights(fit(here, strategy(here, algorithm=algorithm), STEPS, made(), ckpt_path=path)), want)


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


class Fails(Learner):
    def training_step(self, data: Any, number: int) -> torch.Tensor:
        if number == 2:
            raise ZeroDivisionError("of this step")
        return super().training_step(data, number)


def _fails(here: Here, path: str) -> list[str]:
    used = _four_bits(here)
    saving = pl.callbacks.OnExceptionCheckpoint(path, "failed")
    with launched(here):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            arguments = {"callbacks": [saving], "enable_checkpointing": True}
            raised = refusal(lambda: fit(here, used, 4, Fails(), **arguments))
        assert "of this step" in raised, raised
        assert used.bagua is None
        assert "bagua_net" not in torch.load(f"{path}/failed.ckpt", weights_only=True)
        assert same_on_all_ranks(here, weights(fit(here, _four_bits(here), 2)))
    return [str(each.message) for each in caught if "bagua_net.lightning" in str(each.message)]


def test_the_checkpoint_of_a_run_that_failed_is_without_the_state(two: Ranks, tmp_path: Path) -> None:
    said, nothing = two.run(_fails, str(tmp_path))
    assert len(said) == 1
    assert "interrupted" in said[0]
    assert nothing == []


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


def test_a_rank_that_dies_ends_the_others_with_an_error() -> None:
    with Ranks(2) as ranks:
        ranks.begin(_dies)
        ranks.hear("step/3/0", "step/3/1")
        ranks.kill(1)
        outcome = ranks.collect()[0]
        assert outcome.error == "", outcome.where
        assert "rank 1" in outcome.value, outcome.value
