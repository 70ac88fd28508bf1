# SPDX-License-Identifier: MIT
"""Memory that is kept from call to call: new pages at each step cost the processor more than the codec does."""

from __future__ import annotations

import torch


class ScratchBuffers:
    """For one thread or stream."""

    def __init__(self) -> None:
        self._buffers: dict[str, torch.Tensor] = {}

    def get(self, name: str, count: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """So many elements, with what the last call has left there. A name has one type and device."""
        buffer = self._buffers.get(name)
        if buffer is None or buffer.numel() < count:
            buffer = self._buffers[name] = torch.empty(count, dtype=dtype, device=device)
        return buffer[:count]
