# SPDX-License-Identifier: MIT
"""The targets of torch's two entry points. ``autoload`` runs inside ``import torch`` and must never fail.

A separate package that holds nothing else: if another ``bagua_net`` comes first on the path, such as an old clone, its
import fails where the failure is caught.
"""

import logging
from typing import Any


def _make_group(options: Any, backend_options: Any) -> Any:
    """Imports the backend with the first group, not with torch."""
    from bagua_net.torch._create import create

    return create(options, backend_options)


def register() -> None:
    """Entry point ``torch.distributed.backends``: torch >= 2.14 calls it when a job names a backend it does not know.

    Raises:
        ImportError: another ``bagua_net`` comes first on the path, or torch was built without torch.distributed.
    """
    from bagua_net import _torch_backend

    _torch_backend.register(_make_group)


def autoload() -> None:
    """Entry point ``torch.backends``: makes the backend known to torch.distributed, whatever torch's version.

    Never raises: that would break ``import torch``.
    """
    try:
        register()
    except Exception as error:
        logging.getLogger("bagua_net.torch").debug("the backend bagua_net was not registered: %s", error)
