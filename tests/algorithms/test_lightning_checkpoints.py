# SPDX-License-Identifier: MIT
"""What BaguaStrategy has in a Trainer's checkpoints: the state of all ranks, unless it is of other weights."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.algorithms.models import same_on_all_ranks
from tests.support.rank import Here
from tests.support.ranks import Ranks, refusal
from tests.support.tiers import variants

pytest.importorskip("lightning.pytorch", reason="lightning is not installed")

import lightning.pytorch as pl

from bagua_net.algorithms import Algorithm, ByteGrad, GradientAllReduce, QAdam
from tests.algorithms.apart import Apart
from tests.algorithms.learner import (
    Fails,
    Learner,
    Loader,
    SavesAt,
    WithQAdam,
    equal,
    fit,
    four_bits,
    launched,
    strategy,
    trainer,
    weights,
)

BACKENDS = variants("bagua_net", nightly=["gloo"])
STEPS = 6


def _resumes(here: Here, backend: str, path: str) -> None:
    with launched(here):
        whole = weights(fit(here, four_bits(here, backend), STEPS, callbacks=[SavesAt(path, 3)]))
        saved = torch.load(path, weights_only=True)["bagua_net"]["ranks"]
        residuals = [rank["state"]["state"]["residuals"]["net.0.weight"] for rank in saved]
        assert len(residuals) == here.size
        assert not torch.equal(residuals[0], residuals[1])
        assert equal(weights(fit(here, four_bits(here, backend), STEPS, ckpt_path=path)), whole)
        anew = four_bits(here, backend, state_in_checkpoints=False)
        fit(here, anew, STEPS, callbacks=[SavesAt(f"{path}.without", 3)])
        assert "bagua_net" not in torch.load(f"{path}.without", weights_only=True)
        without = weights(fit(here, four_bits(here, backend), STEPS, ckpt_path=f"{path}.without"))
        assert not equal(without, whole), "the residuals make no difference"
        anew = four_bits(here, backend, state_in_checkpoints=False)
        assert equal(weights(fit(here, anew, STEPS, ckpt_path=path)), without), "a state was loaded"


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_resumed_run_ends_where_an_uninterrupted_one_does(two: Ranks, backend: str, tmp_path: Path) -> None:
    two.run(_resumes, backend, str(tmp_path / "saved.ckpt"))


def _saves_afterwards(here: Here, path: str) -> None:
    with launched(here):
        made = trainer(here, four_bits(here))
        made.fit(Learner(), Loader(here, 3))
        made.save_checkpoint(path)
        made.save_checkpoint(f"{path}.weights", weights_only=True)
        during = SavesAt(f"{path}.during", 3)
        fit(here, four_bits(here), 3, callbacks=[during])
    one, other = (torch.load(each, weights_only=True)["bagua_net"]["ranks"] for each in (path, during.path))
    for a, b in zip(one, other, strict=True):
        assert equal(a["state"]["state"]["residuals"], b["state"]["state"]["residuals"])
    assert "bagua_net" not in torch.load(f"{path}.weights", weights_only=True)


def test_a_checkpoint_after_the_fit_has_the_state_at_its_end(two: Ranks, tmp_path: Path) -> None:
    two.run(_saves_afterwards, str(tmp_path / "saved.ckpt"))


def _loads_afterwards(here: Here, path: str) -> None:
    """The state at the end of the fit is not that of weights which a test has loaded."""
    with launched(here):
        made, learner = trainer(here, four_bits(here)), Learner()
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
    algorithm: Algorithm = QAdam(block=64) if change == "bits" else ByteGrad(bits=4, block=32)
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
    assert equal(weights(resumed), weights(anew)), "a part of the state was loaded"
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


def _resumes_apart(here: Here, path: str) -> None:
    with launched(here):
        whole = weights(fit(here, strategy(here, algorithm=Apart()), STEPS, callbacks=[SavesAt(path, 3)]))
        assert not same_on_all_ranks(here, whole)
        assert equal(weights(fit(here, strategy(here, algorithm=Apart()), STEPS, ckpt_path=path)), whole)


def test_ranks_that_train_apart_resume_from_their_own_weights_and_momenta(two: Ranks, tmp_path: Path) -> None:
    two.run(_resumes_apart, str(tmp_path / "saved.ckpt"))


def _fails(here: Here, path: str) -> list[str]:
    used = four_bits(here)
    saving = pl.callbacks.OnExceptionCheckpoint(path, "failed")
    with launched(here):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            arguments = {"callbacks": [saving], "enable_checkpointing": True}
            raised = refusal(lambda: fit(here, used, 4, Fails(), **arguments))
        assert "of this step" in raised, raised
        assert used.bagua is None
        assert "bagua_net" not in torch.load(f"{path}/failed.ckpt", weights_only=True)
        assert same_on_all_ranks(here, weights(fit(here, four_bits(here), 2)))
    return [str(each.message) for each in caught if "bagua_net.lightning" in str(each.message)]


def test_the_checkpoint_of_a_run_that_failed_is_without_the_state(two: Ranks, tmp_path: Path) -> None:
    said, nothing = two.run(_fails, str(tmp_path))
    assert len(said) == 1
    assert "interrupted" in said[0]
    assert nothing == []
