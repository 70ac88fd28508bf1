# SPDX-License-Identifier: MIT
"""The backend's name, and how torch.distributed gets to know it.

Imports next to nothing: it runs inside ``import torch``, by the entry point ``torch.backends`` (bagua_net_autoload).
``import bagua_net.torch`` registers by hand.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

#: The name for ``init_process_group``.
NAME = "bagua_net"


def register(create: Callable[[Any, Any], Any]) -> None:
    """Makes ``init_process_group("bagua_net")`` work in this process. Repeated calls change nothing.

    Args:
        create: makes a group of torch's options and the backend's. It imports the backend when it is called.

    Raises:
        ImportError: torch is not installed, or was built without torch.distributed.
    """
    import torch.distributed as dist

    if not dist.is_available():
        raise ImportError("this torch was built without torch.distributed; install an ordinary build of it")
    if NAME not in dist.Backend.backend_list:
        dist.Backend.register_backend(NAME, create, extended_api=True, devices=["cpu"])
