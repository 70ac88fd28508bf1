# SPDX-License-Identifier: MIT
"""Optimizers that treat a parameter as a whole, by name: joined parameters would be updated wrongly, without an error.

Each of them uses a norm, factors or an orthogonal form of each layer's weights, gradient or update, or looks at all at
once more than once in a step.
"""

from __future__ import annotations

import re

_WHAT = {
    "adafactor": "factors the second moment of each matrix, and clips each update by its norm",
    "adalomo": "factors the second moment of each matrix",
    "adammini": "has one learning rate for each block of a parameter",
    "came": "factors the second moment of each matrix",
    "fromage": "scales each update by the norm of its parameter",
    "galore": "projects each matrix on a subspace",
    "kfac": "has a preconditioner for each layer",
    "lamb": "scales each update by the norm of its parameter",
    "larc": "scales each update by the norm of its parameter",
    "lars": "scales each update by the norm of its parameter",
    "lbfgs": "searches along a line and calls the closure several times",
    "muon": "makes the update of each matrix orthogonal",
    "nero": "normalizes each neuron",
    "novograd": "has one second moment for each parameter",
    "sam": "calls the closure several times",
    "scion": "normalizes each layer",
    "shampoo": "has a preconditioner for each matrix",
    "sm3": "has a second moment for each row and column",
    "soap": "has a preconditioner for each matrix",
    "sparseadam": "takes sparse gradients",
    "stableadamw": "clips each update by its norm",
    "zeroredundancyoptimizer": "gives whole parameters to ranks",
}
#: What names put before and after: FusedLAMB, DistributedShampoo, LarsSGD, MuonWithAuxAdam, GaLoreAdamW8bit.
_BEFORE = "(fused|distributed|onebit|zeroone|singledevice|deepspeed|torch|schedulefree)*"
_AFTER = r"(sgd|w|withauxadam|adam|adamw|adafactor|\d+|\d+bit|paged)*"
_NAMES = re.compile(f"{_BEFORE}(?P<name>{'|'.join(_WHAT)}){_AFTER}")


def reason(optimizer: object) -> str | None:
    """Why this optimizer's parameters cannot be joined; None: its name, and those of its bases, are not known."""
    for kind in type(optimizer).__mro__:
        known = _NAMES.fullmatch(kind.__name__.lower().replace("_", ""))
        if known:
            return f"{kind.__name__} {_WHAT[known['name']]}"
    return None
