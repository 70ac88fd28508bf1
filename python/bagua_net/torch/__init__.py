# SPDX-License-Identifier: MIT
"""The ``bagua_net`` backend of torch.distributed: collectives of CPU tensors over the plugin's transport.

>>> import torch.distributed as dist
>>> import bagua_net.torch                       # automatic where the package is installed
>>> dist.init_process_group("bagua_net")         # doctest: +SKIP

It has all collectives of torch.distributed, point-to-point messages with tags and any source, object collectives and
sub-groups; besides, :func:`all_reduce_quantized` and :func:`reduce_scatter_quantized`, which send less. It takes CPU
tensors; where torch sees an accelerator, the group gets torch's own backend for its tensors as well, as from
``"cpu:bagua_net,cuda:nccl"``; ``"cpu:bagua_net"`` is for CPU tensors alone. Up to torch 2.13,
torch.distributed.monitored_barrier works with gloo only and set_timeout does not exist; use the group's own
:meth:`ProcessGroupBaguaNet.monitored_barrier` and ``set_timeout``.

Every rank needs an address that the others can reach. As for NCCL, ``NCCL_SOCKET_IFNAME`` chooses the interface and the
``BAGUA_NET_*`` parameters apply.
"""

from __future__ import annotations

from typing import Any

from .. import _torch_backend, _untraced
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

# Registered even where this raises. _create loads every module, before dynamo is told of their functions.
from . import _create  # noqa: E402, F401
from ._group import ProcessGroupBaguaNet  # noqa: E402
from ._quantized import all_reduce_quantized, reduce_scatter_quantized  # noqa: E402

_untraced.exclude(__name__)

__all__ = ["NAME", "ProcessGroupBaguaNet", "all_reduce_quantized", "reduce_scatter_quantized", "register"]
