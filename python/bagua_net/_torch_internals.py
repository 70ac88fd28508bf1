# SPDX-License-Identifier: MIT
"""Names inside torch that this package relies on, since torch offers no public ones for it. A torch that has changed
them is refused with one line, when the package is imported or a group is made: nothing goes on by a guess."""

from __future__ import annotations

import inspect
from typing import Any

import torch

from ._torch_backend import NAME

#: The versions of torch that were tested.
TRIED = ("2.11", "2.12", "2.13", "2.14", "2.15")


def unknown(what: str) -> RuntimeError:
    """The error where this torch has not what the package relies on."""
    tried = f"{TRIED[0]} to {TRIED[-1]}"
    return RuntimeError(f"{NAME} does not know torch {torch.__version__}: {what}; use torch {tried}")


def named(owner: Any, name: str, *parameters: str) -> Any:
    """torch's own function of that name, without what decorates it. Raises RuntimeError where this torch has none with
    these parameters."""
    found = getattr(owner, name, None)
    where = f"{getattr(owner, '__module__', owner.__name__)}.{name}"
    if found is None:
        raise unknown(f"it has no {where}")
    found = inspect.unwrap(found)
    missing = [each for each in parameters if each not in found.__code__.co_varnames[: found.__code__.co_argcount]]
    if missing:
        raise unknown(f"{where} has no parameter {' and '.join(missing)}")
    return found
