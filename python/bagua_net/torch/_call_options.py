# SPDX-License-Identifier: MIT
"""The options that torch gives to an operation."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

_NO_TIME = timedelta(0)


def options(kind: Any, given: Any, *others: Any) -> Any:
    """torch's options of an operation. Its methods also take one tensor by itself, and the options' fields in their
    place, so ``given`` may be one of these: a reduction, a root, a timeout."""
    if type(given) is kind:
        return given
    opts = kind()
    for field in (given, *others):
        if isinstance(field, timedelta):
            opts.timeout = field
        elif isinstance(field, int):
            opts.rootRank = field
        elif field is not None:
            opts.reduceOp = field
    return opts


def seconds(timeout: timedelta | None) -> float | None:
    """The timeout in an operation's options. None: the group's, which torch expresses by any value not positive."""
    return timeout.total_seconds() if timeout is not None and timeout > _NO_TIME else None
