# SPDX-License-Identifier: MIT
"""Where a hook asks whether it is of a whole step."""

from __future__ import annotations

import pytest
import torch

from bagua_net.algorithms._steps import is_whole


def test_hooks_that_torch_calls_otherwise_are_refused() -> None:
    """Rather than taken for those of a whole step."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)])
    with pytest.raises(RuntimeError, match="the hooks of SGD are not called by"):
        is_whole(optimizer)
