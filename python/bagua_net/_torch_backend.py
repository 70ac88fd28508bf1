# SPDX-License-Identifier: MIT
"""The name of the torch.distributed backend, and its registration.

It runs inside ``import torch`` (entry point ``torch.backends``, see bagua_net_autoload), so it imports next to nothing.
Where torch runs no such entry points, torch >= 2.14 calls it for the first group (``torch.distributed.backends``).
``import bagua_net.torch`` registers explicitly.
"""

from __future__ import annotations

import atexit
import sys
from collections.abc import Callable
from typing import Any

#: The name for ``init_process_group``.
NAME = "bagua_net"


def register(create: Callable[[Any, Any], Any]) -> None:
    """Makes ``init_process_group("bagua_net")`` work in this process. Repeated calls change nothing.

    Args:
        create: makes a group from torch's options and the backend's own. It imports the backend when called.

    Raises:
        ImportError: torch is not installed, or was built without torch.distributed.
    """
    import torch.distributed as dist

    if not dist.is_available():
        raise ImportError("this torch was built without torch.distributed; install an ordinary build of it")
    if NAME not in dist.Backend.backend_list:
        dist.Backend.register_backend(NAME, create, extended_api=True, devices=["cpu"])
        atexit.register(_abort_open)


def _abort_open() -> None:
    """What a program registers after ``import torch`` runs before this, and still has its groups."""
    member = sys.modules.get("bagua_net.torch._member")
    if member is not None:
        member.abort_open()
