# SPDX-License-Identifier: MIT
"""Text that others have written, for a terminal."""

from __future__ import annotations


def printable(text: object, instead: str = "?") -> str:
    """The text without what a terminal would obey."""
    return "".join(char if char.isprintable() else instead for char in str(text))
