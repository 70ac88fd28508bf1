# SPDX-License-Identifier: MIT
"""``python -m bagua_net`` is ``bagua-net``."""

from .cli import main

main()
