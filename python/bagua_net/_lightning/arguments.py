# SPDX-License-Identifier: MIT
"""What a strategy does not take, in a line that says what to use."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from torch.nn.parallel import DistributedDataParallel

#: Of DDPStrategy: torch's own ways to the one communication hook of DistributedDataParallel.
_OTHER_HOOKS = ("ddp_comm_state", "ddp_comm_hook", "ddp_comm_wrapper", "model_averaging_period")
#: Of upstream's strategy, with what takes their place.
_UPSTREAM = {
    "flatten": "gradient_as_bucket_view does that for DistributedDataParallel",
    "average": "gradients are always averaged",
    "process_group_name": "process_group names the ranks",
}
_SETTINGS = (
    'settings of an algorithm go into its settings: BaguaStrategy(ByteGrad(bits=4)) for BaguaStrategy("bytegrad")'
)


def check(arguments: Mapping[str, Any], of_strategy: Callable[..., None]) -> None:
    """Raises TypeError, or ValueError for another hook. ``of_strategy``: DDPStrategy's constructor."""
    known = {*inspect.signature(of_strategy).parameters, *inspect.signature(DistributedDataParallel).parameters}
    for name, value in arguments.items():
        if name in _OTHER_HOOKS and value is not None:
            raise ValueError(
                f"bagua_net.lightning: {name} would be a second communication hook, and DistributedDataParallel takes "
                "one; use DDPStrategy for it, or leave it out"
            )
        if name not in known:
            raise TypeError(
                f"bagua_net.lightning: BaguaStrategy has no argument {name!r}; {_UPSTREAM.get(name, _SETTINGS)}"
            )
