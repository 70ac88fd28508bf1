# SPDX-License-Identifier: MIT
"""Settings that are no whole numbers, and a GradScaler that is disabled, with every algorithm that has such ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from bagua_net.algorithms import (
    Auto,
    ByteGrad,
    Decentralized,
    DiLoCo,
    GradientAllReduce,
    LowPrecisionDecentralized,
    QAdam,
    QAdamOptimizer,
    attach,
)
from tests.algorithms.models import ddp
from tests.support.rank import Here
from tests.support.ranks import Ranks, refusal


@pytest.mark.parametrize("value", [0, -1, 1.5, 2.0, "2", None])
@pytest.mark.parametrize(
    ("kind", "setting"),
    [
        (Auto, "trial_steps"),
        (Decentralized, "interval"),
        (LowPrecisionDecentralized, "interval"),
        (DiLoCo, "steps"),
        (DiLoCo, "fragments"),
        (DiLoCo, "block"),
    ],
)
def test_a_setting_that_is_no_whole_number_is_refused(kind: Any, setting: str, value: Any) -> None:
    said = refusal(lambda: kind(**{setting: value}))
    wanted = f"{kind.name}: {setting}={value!r} is not possible; give a whole number from 1 on"
    assert said == f"ValueError: bagua_net.algorithms: {wanted}"


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (ByteGrad, {"bits": 8.0}),
        (LowPrecisionDecentralized, {"bits": 4.0}),
        (QAdam, {"bits": 1.0}),
        (DiLoCo, {"bits": 8.0}),
        (DiLoCo, {"bits": 2.0, "density": 0.1}),
        (DiLoCo, {"block": "4096", "density": 0.1}),
        (GradientAllReduce, {"ranks_per_node": 2.0}),
    ],
)
def test_numbers_of_bits_and_the_like_are_whole(kind: Any, settings: dict[str, Any]) -> None:
    said = refusal(lambda: kind(**settings))
    name, value = next(iter(settings.items()))
    assert said.startswith("ValueError"), said
    assert f"{name}={value!r}" in said
    assert "\n" not in said


def test_blocks_of_bytegrad_follow_the_bits_and_can_be_set() -> None:
    assert ByteGrad()._settings()["block"] == 512
    assert ByteGrad(bits=4)._settings() == ByteGrad(bits=4, block=128)._settings()  # which attach compares
    assert replace(ByteGrad(), bits=4)._settings()["block"] == 128
    assert ByteGrad(bits=4, block=512)._settings()["block"] == 512


def _disabled(here: Here, algorithm: str) -> None:
    model = ddp(here, "bagua_net", broadcast_buffers=False)
    optimizer = QAdamOptimizer(model.parameters())
    scaler = torch.amp.GradScaler("cpu", enabled=False) if here.rank == 0 else None
    comm = attach(model, optimizer, algorithm, scaler=scaler)
    assert comm._context.scaler is None
    comm.detach()


@pytest.mark.parametrize(
    "algorithm", ["bytegrad", "qadam", "diloco", "decentralized", "low_precision_decentralized", "async"]
)
def test_a_disabled_scaler_is_as_good_as_none(two: Ranks, algorithm: str) -> None:
    two.run(_disabled, algorithm)
