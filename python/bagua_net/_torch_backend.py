# SPDX-License-Identifier: MIT
"""Makes the backend known to torch.distributed. Runs inside ``import torch``, so it imports next to nothing.

torch has it run by the entry point ``torch.backends`` (bagua_net_autoload); ``import bagua_net.torch`` does the same by
hand.
"""

from __future__ import annotations

from typing import Any

#: The name for ``init_process_group``.
NAME = "bagua_net"


def _create(options: Any, backend_options: Any) -> Any:
    from .torch._create import create

    return create(options, backend_options)


def register() -> None:
    """Makes ``init_process_group("bagua_net")`` work in this process. More than once is fine.

    Raises:
        ImportError: torch is not installed, or was built without torch.distributed.
    """
    import torch.distributed as dist

    if not dist.is_available():
        raise ImportError("this torch was built without torch.distributed; install an ordinary build of it")
    if NAME not in dist.Backend.backend_list:
        dist.Backend.register_backend(NAME, _create, extended_api=True, devices=["cpu"])
