# SPDX-License-Identifier: MIT
"""Tensors of floats in 8 or 4 bits for each element, and back."""

from __future__ import annotations

from .codec import Codec, EagerCodec

__all__ = ["Codec", "EagerCodec"]
