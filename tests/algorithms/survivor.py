# SPDX-License-Identifier: MIT
"""A rank is killed in the middle of training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ranks import Ranks


def survivor(train: Callable[..., Any], *args: Any) -> Any:
    """What ``train(here, *args)`` returns on rank 0 of two, after rank 1 is killed. Both have said ``trained/RANK`` by
    then."""
    with Ranks(2) as ranks:
        ranks.begin(train, *args)
        ranks.hear("trained/0", "trained/1")
        ranks.kill(1)
        outcome = ranks.collect()[0]
        assert outcome.error == "", outcome.where
        return outcome.value
