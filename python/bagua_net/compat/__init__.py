# SPDX-License-Identifier: MIT
"""Scripts written for Bagua run on ``bagua_net.algorithms``, as far as its names can be kept.

>>> import bagua_net.compat
>>> bagua_net.compat.install()                  # before the script's imports of bagua  # doctest: +SKIP

or without a change to the script: ``python -m bagua_net.compat train.py``. Nothing is named ``bagua`` without that:
another package has this name. Each name that is not kept raises one line that says what to use. Which names there are:
docs/lightning.md.
"""

from __future__ import annotations

from ._install import install

__all__ = ["install"]
