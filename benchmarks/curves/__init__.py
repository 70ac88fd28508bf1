# SPDX-License-Identifier: MIT
"""How fast accuracy rises over a network, with the tasks and rows of ``tests/algorithms``."""
