# SPDX-License-Identifier: MIT
"""The ``bagua_net`` backend of torch.distributed: collectives of CPU tensors over the plugin's transport.

>>> import torch.distributed as dist
>>> import bagua_net.torch                       # where the package is installed, torch does this by itself
>>> dist.init_process_group("bagua_net")         # doctest: +SKIP

All collectives of torch.distributed, with tags and any source from point to point, object collectives and sub-groups.
It takes CPU tensors alone; for tensors of a GPU use NCCL with the plugin (:func:`bagua_net.activate`), in a group of
its own: ``"cpu:bagua_net,cuda:nccl"`` is refused. Up to 2.13, torch.distributed.monitored_barrier is for gloo alone
and set_timeout is not there; a group's own :meth:`ProcessGroupBaguaNet.monitored_barrier` and ``set_timeout`` do the
same.

Every rank needs an address that the others reach: ``NCCL_SOCKET_IFNAME`` chooses the interface, as for NCCL, and the
``BAGUA_NET_*`` parameters hold as they do there.
"""

from __future__ import annotations

from typing import Any

from .. import _torch_backend
from .._torch_backend import NAME


def _make_group(options: Any, backend_options: Any) -> Any:
    from ._create import create

    return create(options, backend_options)


def register() -> None:
    """Makes ``init_process_group("bagua_net")`` work in this process. Repeated calls change nothing.

    Raises:
        ImportError: torch is not installed, or was built without torch.distributed.
    """
    _torch_backend.register(_make_group)


register()

from ._group import ProcessGroupBaguaNet  # noqa: E402  (registered even where this raises later)

__all__ = ["NAME", "ProcessGroupBaguaNet", "register"]
