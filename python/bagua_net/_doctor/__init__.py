# SPDX-License-Identifier: MIT
"""The checks of ``bagua-net doctor``."""
