# SPDX-License-Identifier: MIT
"""What torch imports by the entry point ``torch.backends``, inside ``import torch``: it may never fail.

A package of its own, with nothing but this: whatever other ``bagua_net`` comes first on the path, an old clone for one,
is imported where its failure is caught.
"""

import logging
from typing import Any


def _make_group(options: Any, backend_options: Any) -> Any:
    """The backend itself is imported with the first group, not with torch."""
    from bagua_net.torch._create import create

    return create(options, backend_options)


def autoload() -> None:
    """Makes the backend known to torch.distributed. Never raises: that would break ``import torch``."""
    try:
        from bagua_net._torch_backend import register

        register(_make_group)
    except Exception as error:
        logging.getLogger("bagua_net.torch").debug("the backend bagua_net was not registered: %s", error)
