# SPDX-License-Identifier: MIT
"""DDP's ``join``: works of which torch keeps only the C++ half.

Before each forward pass inside ``join`` a rank tells those without further inputs that it has one: an asynchronous
all_reduce of one element. DDP hands its work to the reducer, in C++, which asks it in the backward pass how many ranks
took part. A call from C++ to a method in Python needs the object in Python, and the reducer does not own that. Nor does
it say when it lets go: so each module keeps the last of these works.
"""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any
from weakref import WeakKeyDictionary

from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

from .._torch_internals import named

#: Calls all_reduce for the module that is its argument.
_NOTIFY = named(Join, "notify_join_context", "joinable").__code__

#: The work of each module, which outlives the reducer's use of it: that ends when the module's next work replaces it.
_kept: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()


def keep(work: Any) -> None:
    """To be called with each asynchronous all_reduce of one element; keeps it if it is a module's in ``join``."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code is not _NOTIFY:
        frame = frame.f_back
    if frame is not None and isinstance(module := frame.f_locals["joinable"], DistributedDataParallel):
        _kept[module] = work
