# SPDX-License-Identifier: MIT
"""A rank is lost in the middle of training."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

from tests.support.ranks import Ranks


def survivor(train: Callable[..., Any], *args: Any) -> Any:
    """What ``train(here, *args)`` returns on rank 0 of two, after rank 1 is killed. Both have said ``trained/RANK`` by
    then."""
    return _alone(train, args, stops=False)


def waiting(train: Callable[..., Any], *args: Any) -> Any:
    """The same where rank 1 is not killed, but stands still until rank 0 has said ``ended``."""
    return _alone(train, args, stops=True)


def _alone(train: Callable[..., Any], args: tuple[Any, ...], *, stops: bool) -> Any:
    with Ranks(2) as ranks:
        ranks.begin(train, *args)
        ranks.hear("trained/0", "trained/1")
        if stops:
            ranks.process(1).send_signal(signal.SIGSTOP)
            ranks.hear("ended")
        ranks.kill(1)
        outcome = ranks.collect()[0]
        assert outcome.error == "", outcome.where
        return outcome.value
