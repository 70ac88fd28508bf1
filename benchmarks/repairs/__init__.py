# SPDX-License-Identifier: MIT
"""Streams that are reset while data moves: how soon their connection has its full rate again."""
