# SPDX-License-Identifier: MIT
"""Memory that is kept from call to call: new pages at each step cost the processor more than the codec does."""

from __future__ import annotations

import torch


class Rooms:
    """For one thread or stream."""

    def __init__(self) -> None:
        self._rooms: dict[str, torch.Tensor] = {}

    def take(self, name: str, count: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """So many elements, with what the last call has left there. A name has one type and device."""
        room = self._rooms.get(name)
        if room is None or room.numel() < count:
            room = self._rooms[name] = torch.empty(count, dtype=dtype, device=device)
        return room[:count]
