# SPDX-License-Identifier: MIT
"""The target of the entry point ``torch.backends``: runs inside ``import torch`` and must never fail.

A separate package that holds nothing else: if another ``bagua_net`` comes first on the path, such as an old clone, its
import fails where the failure is caught.
"""

import logging
from typing import Any


def _make_group(options: Any, backend_options: Any) -> Any:
    """Imports the backend with the first group, not with torch."""
    from bagua_net.torch._create import create

    return create(options, backend_options)


def autoload() -> None:
    """Makes the backend known to torch.distributed. Never raises: that would break ``import torch``."""
    try:
        from bagua_net._torch_backend import register

        register(_make_group)
    except Exception as error:
        logging.getLogger("bagua_net.torch").debug("the backend bagua_net was not registered: %s", error)
