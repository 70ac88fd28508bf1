# SPDX-License-Identifier: MIT
"""The shared library: its path, its version, and calls into it."""
